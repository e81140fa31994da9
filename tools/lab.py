"""Make the environment of the course and start a command in it: `make lab`, `make test` and the others run this file.

Needs a Python 3.6 or newer and its standard library only. It looks for a Python 3.11 to 3.13, makes `.venv` with it,
installs what `pyproject.toml` asks for under `constraints.txt`, and does both again only when one of them has changed.
What goes wrong is said in one sentence that names the remedy; after it, the same command can simply be run again.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ((3, 11), (3, 12), (3, 13))
ROOT = Path(__file__).resolve().parent.parent
STAMP = "servelab.json"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
FLOOR_BYTES = 3_500_000_000  # the smallest environment (2.4 GB) and its downloads; a build of torch for GPUs takes more
UPDATE_BYTES = 1_000_000_000  # where an environment is there already
PROBE = (
    "import sys, importlib.util as u;"
    "print(sys.version_info[0], sys.version_info[1], int(bool(u.find_spec('venv') and u.find_spec('ensurepip'))))"
)
DISK_FULL = re.compile(r"No space left on device|Errno 28|not enough space on the disk", re.I)
NO_REGISTRY = re.compile(
    r"connection broken by|NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Max retries exceeded|failure in name resolution|Network is unreachable|Connection refused|HTTP error 5",
    re.I,
)


class Stop(Exception):
    """One sentence for the person at the keyboard: what is wrong and what to do."""


def probe(python):
    """Return ((major, minor), can make venvs) of an interpreter, or None where it does not run."""
    try:
        answer = subprocess.run(
            [str(python), "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        ).stdout.split()
        return (int(answer[0]), int(answer[1])), answer[2] == b"1"
    except (OSError, ValueError, IndexError):
        return None


def find_python(again):
    """Return the path of a supported Python that can make virtual environments: this one, or another on the PATH."""
    names = ["python3.12", "python3.13", "python3.11", "python3", "python"]
    candidates = [sys.executable] + [found for found in map(shutil.which, names) if found]
    seen, old = [], []
    for candidate in candidates:
        answer = probe(candidate)
        if answer is None:
            continue
        version, has_venv = answer
        if version in SUPPORTED and has_venv:
            return candidate
        (seen if version in SUPPORTED else old).append((version, candidate))
    if seen:
        version, candidate = seen[0]
        name = "python{}.{}-venv".format(*version)
        raise Stop(
            f"{candidate} cannot make virtual environments: install its venv module "
            f"(on Debian and Ubuntu: sudo apt install {name}), then run `{again}` again."
        )
    versions = " and ".join(sorted({"{}.{}".format(*version) for version, _ in old})) or "none that runs"
    raise Stop(
        f"The course needs Python 3.11, 3.12 or 3.13 and this machine has {versions}: install one "
        f"(for example from python.org, or with conda as README.md says), then run `{again}` again."
    )


class Environment:
    """`.venv` of the course at `root`, and the note in it that says what it was made from."""

    folder = ".venv"
    floor_bytes = FLOOR_BYTES

    def __init__(self, root, again="make lab"):
        self.root, self.again = Path(root), again
        self.path = self.root / self.folder
        self.bin = self.path / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / ("python.exe" if os.name == "nt" else "python")

    def stamp(self):
        """Return the note of the last complete installation; empty where there was none."""
        try:
            found = json.loads((self.path / STAMP).read_text())
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def made_from(self, version):
        """Return a hash of everything that asks for a new installation when it changes."""
        digest = hashlib.sha256("{} {} {}".format(self.root, *version).encode())
        for name in ("pyproject.toml", "constraints.txt"):
            digest.update((self.root / name).read_bytes())
        return digest.hexdigest()

    def ensure(self, extras=(), torch=None):
        """Make the environment hold the package with `extras` and a build of torch ("cpu", "gpu", or as it is)."""
        stamp = self.stamp()
        known = probe(self.python)
        version = known[0] if known else None
        current = version in SUPPORTED and stamp.get("made_from") == self.made_from(version)
        torch = torch or stamp.get("torch", "gpu")
        wanted = sorted(set(extras) | set(stamp.get("extras", [])))
        if current and torch == stamp.get("torch") and wanted == stamp.get("extras"):
            return
        self.check_disk()
        moved = bool(stamp) and stamp.get("root") != str(self.root)
        if version not in SUPPORTED or moved or not self.has_pip():
            python = find_python(self.again)
            say("Making {} with Python {}.{} ({})".format(self.folder, *probe(python)[0], python))
            self.call([python, "-m", "venv", "--clear", str(self.path)], "The virtual environment could not be made")
            version = probe(self.python)[0]
            stamp = {}
        note = {"made_from": "incomplete", "root": str(self.root), "torch": torch, "extras": wanted}
        if stamp.get("torch", torch) != torch:
            self.call([*self.pip(), "uninstall", "--yes", "torch"], "The other build of torch could not be removed")
        self.write_stamp(note)
        self.install(wanted, torch)
        self.write_stamp({**note, "made_from": self.made_from(version)})

    def install(self, extras, torch):
        """Install the package in place, with its requirements at the versions of constraints.txt."""
        pip = self.pip()
        constraints = str(self.root / "constraints.txt")
        say("Installing the course: some minutes the first time, one of them in silence; nothing the next time")
        if torch == "cpu" and platform.system() != "Darwin":
            pin = re.search(r"^torch==\S+", Path(constraints).read_text(), re.M).group()
            command = [*pip, "install", "--no-deps", "--index-url", CPU_BUILDS, pin]
            self.call(command, "The CPU build of torch could not be installed")
        target = str(self.root) + ("[{}]".format(",".join(extras)) if extras else "")
        self.call([*pip, "install", "-c", constraints, "-e", target], "The packages could not be installed")

    def pip(self):
        return [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]

    def has_pip(self):
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.call([*self.pip(), "--version"], **silent) == 0

    def check_disk(self):
        free = shutil.disk_usage(str(self.root)).free
        if free < (UPDATE_BYTES if self.stamp() else self.floor_bytes):
            raise Stop(self.full_disk(f"{self.root} has {free / 1e9:.1f} GB free"))

    def full_disk(self, finding):
        return (
            f"The disk is full ({finding}): free about 9 GB, or 4 GB and choose TORCH=cpu, "
            f"then run `{self.again}` again."
        )

    def write_stamp(self, content):
        (self.path / STAMP).write_text(json.dumps(content, indent=1) + "\n")

    def call(self, command, failure):
        """Run a command whose normal output is shown; turn its error output into one sentence."""
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=str(self.root))
        errors = process.stderr.read().decode(errors="replace")
        if process.wait() == 0:
            return
        if DISK_FULL.search(errors):
            raise Stop(self.full_disk("while writing .venv or the temporary folder"))
        if NO_REGISTRY.search(errors):
            raise Stop(
                "The package registry cannot be reached: connect this machine to the network, "
                f"or set PIP_INDEX_URL to a mirror, then run `{self.again}` again."
            )
        said = [line.strip() for line in errors.splitlines() if line.strip()]
        telling = [line for line in said if line.lower().startswith("error")] or said or ["no reason given"]
        raise Stop(f"{failure} ({telling[-1]}): remove {self.folder} and run `{self.again}` again.")

    def execute(self, command):
        """Replace this process by `command`, found in the environment first."""
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        environ = dict(os.environ, PATH=path, VIRTUAL_ENV=str(self.path))
        environ.pop("PYTHONHOME", None)
        program = shutil.which(command[0], path=path)
        if program is None:
            raise Stop(f"{command[0]} is not in .venv: remove .venv and run `{self.again}` again.")
        sys.stdout.flush()
        if os.name == "nt":
            sys.exit(subprocess.call([program, *command[1:]], env=environ))
        os.execve(program, [program, *command[1:]], environ)


def say(text):
    print(text, flush=True)


def lab_command(port, browser):
    """Return the command that starts the course, from what stands after `make lab`."""
    command = ["servelab", "lab"]
    if port:
        if not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
            raise Stop(f"PORT={port} is not a port: choose a number from 1024 to 65535, such as `make lab PORT=8899`.")
        command += ["--port", port]
    if browser.lower() in ("0", "no", "false"):  # a BROWSER that names a program is the system's own variable
        command.append("--no-browser")
    return command


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", default="", help="cpu: the small build without GPU support; gpu: the default build")
    parser.add_argument("--extras", default="", help="extras of pyproject.toml, joined by commas")
    verbs = parser.add_subparsers(dest="verb")
    lab = verbs.add_parser("lab", help="start the course in JupyterLab")
    lab.add_argument("--port", default="")
    lab.add_argument("--browser", default="")
    run = verbs.add_parser("run", help="run a command in the environment")
    run.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    # Under LC_ALL=C a Python before 3.13 reads its environment's paths as ASCII, and dies where one holds an "é".
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"
    again = os.environ.get("SERVELAB_AGAIN", "make lab")
    try:
        if options.torch not in ("", "cpu", "gpu"):
            raise Stop(f"TORCH={options.torch} is not a build of torch: choose TORCH=cpu or TORCH=gpu.")
        if options.verb is None:
            parser.error("expected lab or run")
        command = lab_command(options.port, options.browser) if options.verb == "lab" else options.command
        environment = Environment(root, again)
        environment.ensure([extra for extra in options.extras.split(",") if extra], options.torch)
        environment.execute(command)
    except Stop as stop:
        print(f"\n{stop}", file=sys.stderr)
        return 1
    except OSError as error:
        full = error.errno == 28
        sentence = Environment(root, again).full_disk(str(root)) if full else f"{error}: run `{again}` again."
        print(f"\n{sentence}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped: run `{again}` to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
