"""GuideLLM as a child process: what it is started with, what its lines tell, how it fails and how it is stopped."""

import os
import signal
import stat
import sys
import threading
import time

import psutil
import pytest

from servelab.serving import guidellm
from servelab.serving.environment import EnvironmentMissing
from servelab.serving.guidellm import LoadFailed, Progress, run_scenario
from servelab.serving.process import last_words

LINE = (
    "12:00:01|INFO     |guidellm.benchmark.progress:_log_update:420 - Benchmark {level} ({name}): {status} | "
    "elapsed={elapsed}s | successful={completed} errored={failed} incomplete=0 | requests/s=1.50 output_tokens/s=48.00"
)


def line(level=1, status="started", elapsed=0.0, completed=0, failed=0, name="concurrent@4"):
    return LINE.format(level=level, name=name, status=status, elapsed=elapsed, completed=completed, failed=failed)


@pytest.fixture
def fake(tmp_path):
    """A Python whose GuideLLM is a few lines of the shell: `fake("exit 3")`."""

    def make(script):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        return python

    return make


def run(python, scenario=None, **options):
    return run_scenario(scenario or {"spec": {}}, Progress(1, 4, None), shown=False, python=python, **options)


def test_it_is_told_by_a_file_and_its_report_is_read(fake):
    assert run(fake("cp scenario.json report.json"), {"spec": {"seed": 7}}) == {"spec": {"seed": 7}}


def test_the_key_is_in_no_command_line_and_in_no_file_of_others(fake):
    script = 'echo "{\\"words\\": \\"$*\\", \\"mode\\": \\"$(ls -ld . | cut -c1-10)\\"}" > report.json'
    report = run(fake(script), {"spec": {"backend": {"api_key": "secret"}}})
    assert report == {"words": "-m guidellm run --config scenario.json --disable-console", "mode": "drwx------"}


def test_no_setting_of_the_shell_changes_a_load(monkeypatch, tmp_path):
    monkeypatch.setenv("GUIDELLM__DEFAULT_SWEEP_NUMBER", "3")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = guidellm.variables(tmp_path, offline=True)
    assert "GUIDELLM__DEFAULT_SWEEP_NUMBER" not in found
    assert found["HF_HUB_OFFLINE"] == "1"
    assert int(found["GUIDELLM__MAX_WORKER_PROCESSES"]) >= 1
    assert found["PATH"] == os.environ["PATH"]
    assert "HF_HUB_OFFLINE" not in guidellm.variables(tmp_path, offline=False)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'RuntimeError: no such model' >&2; exit 3", "GuideLLM ended with code 3: RuntimeError: no such model"),
        ("exit 3", "GuideLLM ended with code 3: it said nothing"),
        ("exit 0", "GuideLLM left no report"),
        ("echo '{\"a\":' > report.json", "GuideLLM left no report"),
    ],
)
def test_a_failure_is_one_sentence(fake, script, said):
    with pytest.raises(LoadFailed, match=said) as failed:
        run(fake(script))
    assert "\n" not in str(failed.value)


def test_without_its_environment_it_says_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("servelab.serving.environment.servelab.__file__", str(tmp_path / "a" / "b" / "c" / "init.py"))
    with pytest.raises(EnvironmentMissing, match=r"^GuideLLM has no environment yet: run `make guidellm` in"):
        run(None)


def test_its_environment_is_found_from_a_folder_inside_the_course(monkeypatch, tmp_path):
    python = tmp_path / ".venv-guidellm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "workspace").mkdir()
    monkeypatch.chdir(tmp_path / "workspace")
    assert guidellm.find_python(".venv-guidellm", "GuideLLM", "guidellm") == python


def test_an_interruption_ends_it_and_its_workers(fake, tmp_path):
    """Ctrl-C reaches this process; the shell and its child, which ignores a polite request, must both be gone."""
    pids = tmp_path / "pids"
    python = fake(f"sh -c 'trap \"\" TERM; sleep 60' & echo $$ $! > {pids}; wait")

    def interrupt():
        while not (pids.exists() and pids.read_text().strip()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell began this in background
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(python)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    left = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_progress_follows_the_lines():
    progress = Progress(2, 10, None)
    assert progress.describe() == "GuideLLM starts"
    progress.hear("something else")
    progress.hear(line())
    assert (progress.done, progress.fraction) == (0, 0)
    progress.hear(line(status="in_progress", elapsed=10.0, completed=3, failed=1))
    assert progress.fraction == 0.4
    assert progress.describe() == "concurrent@4, 4 requests"
    progress.hear(line(status="completed", completed=10))
    assert (progress.done, progress.fraction) == (1, 0)
    progress.hear(line(level=2, name="poisson@0.50"))
    progress.hear(line(level=2, status="in_progress", completed=90, name="poisson@0.50"))
    assert progress.fraction == 1


def test_progress_follows_the_clock_where_time_ends_a_level(monkeypatch):
    now = iter([100.0, 105.0])
    monkeypatch.setattr(guidellm.time, "monotonic", lambda: next(now))
    progress = Progress(1, None, 20.0)
    progress.hear(line())
    assert progress.fraction == 0.25


def test_a_bar_is_drawn_and_not_drawn(fake, capsys):
    python = fake(f"echo '{line(status='completed', completed=4)}' >&2; sleep 0.6; echo '{{}}' > report.json")
    run_scenario({}, Progress(1, 4, None), shown=True, python=python)
    assert "concurrent@4, 4 requests: 100%" in capsys.readouterr().err
    run_scenario({}, Progress(None, 4, None), shown=False, python=python)
    assert capsys.readouterr().err == ""


def test_last_words():
    assert last_words(["a\n", "\n", " b \n", "\n"]) == "b"
    assert last_words(["a\n", "b\n", "c\n"], 2) == "b\nc"
    assert last_words([]) == "it said nothing"
