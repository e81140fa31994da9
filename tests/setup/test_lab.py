"""tools/lab.py: the environment is made once, remade when it must be, and every failure is one sentence."""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "tools" / "lab.py"
FAKE_PIP = """#!{python}
import os, pathlib, sys
here = pathlib.Path(__file__).parent
if sys.argv[1] == "-c":
    print("3 11 1")
elif "--version" in sys.argv:
    sys.exit(0 if (here / "has_pip").exists() else 1)
else:
    with open(os.environ["CALLS"], "a") as calls:
        print(" ".join(sys.argv[1:]), file=calls)
    failure = os.environ.get("PIP_FAILS")
    if failure:
        sys.exit(failure)
"""
FAKE_PYTHON = """#!{python}
import os, pathlib, shutil, sys
if sys.argv[1] == "-c":
    print("{answer}")
elif sys.argv[1:3] == ["-m", "venv"]:
    if os.environ.get("VENV_FAILS"):
        sys.exit(os.environ["VENV_FAILS"])
    folder = pathlib.Path(sys.argv[-1])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    shutil.copy({pip!r}, folder / "bin" / "python")
    (folder / "bin" / "has_pip").touch()
    with open(os.environ["CALLS"], "a") as calls:
        print("venv", file=calls)
    program = folder / "bin" / "servelab"
    program.write_text("#!/bin/sh\\necho servelab $@\\n")
    program.chmod(0o755)
"""


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.delenv("SERVELAB_AGAIN", raising=False)  # `make` names itself in it
    spec = importlib.util.spec_from_file_location("lab_under_test", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Course:
    """A course folder and a PATH whose programs all are fakes that note how they are called."""

    def __init__(self, folder):
        self.root, self.path, self.calls_file = folder / "course", folder / "programs", folder / "calls"
        (self.root / "tools").mkdir(parents=True)
        self.path.mkdir()
        shutil.copy(SCRIPT, self.root / "tools" / "lab.py")
        (self.root / "pyproject.toml").write_text("[project]\n")
        (self.root / "constraints.txt").write_text("numpy==2.4.6\ntorch==2.13.0\n")
        self.pip = folder / "pip"
        self.write(self.pip, FAKE_PIP.format(python=sys.executable))
        for tool in ("sh",):
            (self.path / tool).symlink_to(shutil.which(tool))
        self.add_python("python3.12", "3 12 1")

    def write(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def add_python(self, name, answer):
        self.write(self.path / name, FAKE_PYTHON.format(python=sys.executable, answer=answer, pip=str(self.pip)))

    def make(self, *arguments, **environ):
        """Run tools/lab.py as a Python outside the supported range would: it must look for another one."""
        code = (
            "import runpy, sys; sys.executable = '/missing/python';"
            "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        command = [sys.executable, "-c", code, str(self.root / "tools" / "lab.py"), *(arguments or ("lab",))]
        environ = {"PATH": str(self.path), "CALLS": str(self.calls_file), "HOME": str(self.root), **environ}
        return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)

    def calls(self):
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path)


def sentence(answer):
    """Return what a failed run says at the end, after checking that it is one sentence and not a traceback."""
    assert answer.returncode != 0
    assert "Traceback" not in answer.stderr
    (said,) = [line for line in answer.stderr.splitlines() if line]
    assert said.endswith(".")
    return said


def test_first_run_makes_the_environment_and_starts(course):
    answer = course.make("lab", "--port", "8899", "--browser", "0")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "servelab lab --port 8899 --no-browser"
    venv, install = course.calls()
    assert venv == "venv"
    assert install.endswith(f"install -c {course.root}/constraints.txt -e {course.root}")


def test_second_run_installs_nothing(course):
    course.make()
    course.calls_file.unlink()
    assert course.make().stdout == "servelab lab\n"
    assert course.calls() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again_into_the_same_environment(course, name):
    course.make()
    course.calls_file.unlink()
    with (course.root / name).open("a") as file:
        file.write("# changed\n")
    course.make()
    assert [" install " in f" {call} " for call in course.calls()] == [True]


def test_a_moved_folder_gets_a_new_environment(course):
    course.make()
    course.calls_file.unlink()
    moved = course.root.with_name("moved")
    course.root.rename(moved)
    course.root = moved
    answer = course.make()
    assert answer.stdout.endswith("servelab lab\n")
    assert course.calls()[0] == "venv"
    assert course.calls()[1].endswith(f"-e {moved}")


def test_another_python_in_the_environment_makes_it_anew(course):
    course.make()
    course.calls_file.unlink()
    fake = course.root / ".venv" / "bin" / "python"
    fake.write_text(fake.read_text().replace("3 11 1", "3 10 1"))
    course.make()
    assert course.calls()[0] == "venv"


def test_extras_are_kept_by_a_later_start(course):
    course.make("--extras", "test,author", "run", "servelab", "x")
    assert course.calls()[-1].endswith("[author,test]")
    course.calls_file.unlink()
    assert course.make().returncode == 0
    assert course.calls() == []


def test_the_cpu_build_comes_first_and_is_remembered(course):
    course.make("--torch", "cpu", "lab")
    _venv, torch, course_install = course.calls()
    assert torch.endswith("--index-url https://download.pytorch.org/whl/cpu torch==2.13.0")
    assert "--index-url" not in course_install
    course.calls_file.unlink()
    course.make()
    assert course.calls() == []
    course.make("--torch", "gpu", "lab")
    assert "uninstall --yes torch" in course.calls()[0]
    assert "--index-url" not in course.calls()[1]


def test_unknown_build_of_torch(course):
    assert sentence(course.make("--torch", "rocm", "lab")).startswith("TORCH=rocm is not a build of torch")


@pytest.mark.parametrize("port", ["abc", "0", "70000", "-1", "²", "٣٣٣٣"])
def test_impossible_port(course, port):
    assert sentence(course.make("lab", f"--port={port}")).startswith(f"PORT={port} is not a port")
    assert course.calls() == []


def test_a_browser_variable_of_the_system_is_left_alone(course):
    assert course.make("lab", "--browser", "firefox").stdout.endswith("servelab lab\n")


def test_an_older_default_python_is_passed_over(course):
    course.add_python("python3", "3 9 1")
    course.add_python("python3.12", "3 12 0")
    course.add_python("python3.13", "3 13 1")
    answer = course.make()
    assert f"({course.path}/python3.13)" in answer.stdout


def test_too_old_a_python(course):
    (course.path / "python3.12").unlink()
    course.add_python("python3", "3 9 1")
    said = sentence(course.make())
    assert said.startswith("The course needs Python 3.11, 3.12 or 3.13 and this machine has 3.9: install one")
    course.add_python("python3.11", "3 11 1")
    assert course.make().returncode == 0


def test_no_python_that_runs(course):
    (course.path / "python3.12").write_text("#!/bin/sh\nexit 127\n")
    assert "this machine has none that runs" in sentence(course.make())


def test_no_venv_module(course):
    course.add_python("python3.12", "3 12 0")
    said = sentence(course.make())
    assert said.startswith(f"{course.path}/python3.12 cannot make virtual environments")
    assert "sudo apt install python3.12-venv" in said
    course.add_python("python3.12", "3 12 1")
    assert course.make().returncode == 0


FAILURES = {
    "disk": ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "The disk is"),
    "registry": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
        "ERROR: No matching distribution found for hatchling",
        "The package registry cannot be reached: connect",
    ),
    "other": ("some text\nERROR: Cannot install a and b\n", "The packages could not be installed (ERROR: Cannot ins"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failed_installation_is_one_sentence_and_can_be_repeated(course, kind):
    output, beginning = FAILURES[kind]
    said = sentence(course.make(PIP_FAILS=output))
    assert said.startswith(beginning)
    assert "run `make lab` again" in said
    course.calls_file.unlink()
    answer = course.make()
    assert answer.stdout.endswith("servelab lab\n")
    assert [" install " in f" {call} " for call in course.calls()] == [True]


def test_a_full_disk_while_making_the_environment(course):
    said = sentence(course.make(VENV_FAILS="OSError: [Errno 28] No space left on device"))
    assert said.startswith("The disk is full")
    assert course.make().returncode == 0


def test_a_half_made_environment_is_made_anew(course):
    course.make(PIP_FAILS="ERROR: killed")
    (course.root / ".venv" / "bin" / "has_pip").unlink()
    course.calls_file.unlink()
    assert course.make().returncode == 0
    assert course.calls()[0] == "venv"


def test_the_sentence_names_the_target_that_was_asked_for(course):
    said = sentence(course.make("run", "servelab", PIP_FAILS=FAILURES["registry"][0], SERVELAB_AGAIN="make test"))
    assert said.endswith("then run `make test` again.")


def test_a_disk_that_cannot_hold_it_is_told_before_anything_is_made(lab, course, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(lab.shutil, "disk_usage", lambda path: usage(10**10, 10**10 - 10**8, 10**8))
    with pytest.raises(lab.Stop, match=r"The disk is full \(.* has 0\.1 GB free\): free about 9 GB"):
        lab.Environment(course.root).ensure()
    assert not (course.root / ".venv").exists()


@pytest.mark.parametrize(("stamp", "refused"), [({}, True), ({"made_from": "an earlier version"}, False)])
def test_bringing_an_environment_up_to_date_needs_less_than_making_it(lab, course, monkeypatch, stamp, refused):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(lab.shutil, "disk_usage", lambda path: usage(10**10, 8 * 10**9, 2 * 10**9))
    environment = lab.Environment(course.root)
    monkeypatch.setattr(environment, "stamp", lambda: stamp)
    if refused:
        with pytest.raises(lab.Stop, match="The disk is full"):
            environment.check_disk()
    else:
        environment.check_disk()


def test_a_full_disk_anywhere_else_is_one_sentence(lab, course, monkeypatch, capsys):
    def fail(self, extras, torch):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lab.Environment, "ensure", fail)
    assert lab.main(["lab"], root=course.root) == 1
    assert capsys.readouterr().err.strip().startswith("The disk is full")


def test_an_interrupted_installation_goes_on(lab, course, monkeypatch, capsys):
    def interrupt(self, extras, torch):
        raise KeyboardInterrupt

    monkeypatch.setattr(lab.Environment, "ensure", interrupt)
    assert lab.main(["lab"], root=course.root) == 130
    assert capsys.readouterr().err.strip() == "Stopped: run `make lab` to go on."


def test_it_can_be_read_by_an_old_python(lab):
    import ast

    assert ast.parse(SCRIPT.read_text(), feature_version=(3, 7))
    assert all(version >= (3, 11) for version in lab.SUPPORTED)


def test_a_supported_python_is_found_on_this_machine(lab):
    version, has_venv = lab.probe(lab.find_python("make lab"))
    assert version in lab.SUPPORTED
    assert has_venv


@pytest.mark.parametrize("locale", ["C", "POSIX", "de_DE.UTF-8"])
def test_a_course_below_a_path_that_is_not_ascii_runs_in_the_c_locale(lab, monkeypatch, locale):
    """Python 3.11 and 3.12 read the paths of their environment in the locale's encoding, and end at the first "é"."""
    monkeypatch.setenv("LC_ALL", locale)
    seen = []
    monkeypatch.setattr(lab.Environment, "ensure", lambda *_: seen.append(os.environ["LC_ALL"]))
    monkeypatch.setattr(lab.Environment, "execute", lambda *_: seen.append(os.environ["LC_ALL"]))
    lab.main(["run", "servelab", "--version"])
    assert seen == [locale if "UTF-8" in locale else "C.UTF-8"] * 2
