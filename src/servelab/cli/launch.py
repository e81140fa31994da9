"""`servelab lab`: prepare the model, bring the learner's workspace up to date, start JupyterLab on it."""

from __future__ import annotations

import errno
import getpass
import os
import platform
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import servelab
from servelab.cli.server import START, TOKEN_VARIABLE
from servelab.device import cache_folder
from servelab.translation import _

MODEL = "smollm2-135m"
HOST = "127.0.0.1"


class CannotStart(RuntimeError):
    """One sentence that says what is in the way and what to do about it."""


def start(port: int, browser: bool) -> NoReturn:
    """Prepare everything and replace this process by JupyterLab. Raises CannotStart with one sentence."""
    root = course_root()
    check_port(port)
    try:
        prepare_model()
        folder = prepare_workspace(root)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            sentence = _("The disk is full: free about 1 GB ({folder} takes the model), then run `make lab` again.")
            raise CannotStart(sentence.format(folder=cache_folder())) from error
        sentence = _("Cannot write {file} ({reason}): make it yours to write, then run `make lab` again.")
        raise CannotStart(sentence.format(file=error.filename or root, reason=error.strerror or error)) from error
    except ValueError as error:
        sentence = _("The course is not complete ({error}): run `git restore notebooks`, then `make lab` again.")
        raise CannotStart(sentence.format(error=error)) from error
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(24)
    print(address(port, token, browser), flush=True)
    serve(folder, port, browser, token)


def course_root() -> Path:
    """Return the folder of the course: the current one or one above it, else where the package lies."""
    for folder in (Path.cwd(), *Path.cwd().parents, Path(servelab.__file__).parents[2]):
        if (folder / "notebooks").is_dir() and (folder / "src" / "servelab").is_dir():
            return folder
    raise CannotStart(_("The notebooks are not here: run `servelab lab` in the folder that you cloned."))


def check_port(port: int) -> None:
    """Raise CannotStart, with a free port to use instead, when something listens on `port` already."""
    if not _is_free(port):
        other = next((p for p in range(port + 1, min(port + 50, 65536)) if _is_free(p)), 8899)
        sentence = _("Port {port} is taken: stop what runs there, or start with `make lab PORT={other}`.")
        raise CannotStart(sentence.format(port=port, other=other))


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        if os.name == "posix":  # without it, a port that was closed a moment ago would count as taken
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def prepare_model() -> None:
    """Fetch and convert the model unless the cache has it. Raises CannotStart when that cannot be done."""
    try:
        from servelab.model import ModelUnavailable
        from servelab.model import prepare_model as prepare
    except (ImportError, OSError) as error:  # a broken torch raises either
        sentence = _("The course cannot be loaded ({error}): `.venv/bin/servelab doctor` says what to repair.")
        raise CannotStart(sentence.format(error=error)) from error
    try:
        prepare(MODEL, progress=True)
    except ModelUnavailable as error:
        raise CannotStart(str(error)) from error


def prepare_workspace(root: Path) -> Path:
    """Bring `workspace/` up to date, say what changed there, and return its folder."""
    from servelab.course.workspace import sync

    report = sync(root)
    if report.added:
        print(_("New in workspace/: {names}").format(names=", ".join(report.added)))
    if report.updated:
        print(_("Brought up to date in workspace/: {names}").format(names=", ".join(report.updated)))
    for name, backup in report.backups.items():
        print(_("The results you had in {name} are kept in {backup}").format(name=name, backup=backup))
    for name, new in report.conflicts.items():
        print(_("You changed {name}, so it stays as it is; the new version is {new}").format(name=name, new=new))
    return root / "workspace"


def address(port: int, token: str, browser: bool) -> str:
    """Return where the course is to be found, and without a browser the ssh line that brings it to another machine."""
    url = f"http://{HOST}:{port}/lab/tree/{START}?token={token}"
    if browser:
        return _("The course opens in your browser, or at {url}\nCtrl-C ends it.").format(url=url)
    there = f"{_user()}@{platform.node() or 'HOST'}"
    lines = [
        _("On your own machine, open a tunnel:  {command}").format(
            command=f"ssh -N -L {port}:{HOST}:{port} {there}",
        ),
        _("Then open there, in a few seconds:  {url}").format(url=url),
        _("Ctrl-C ends the course here."),
    ]
    return "\n".join(lines)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return "YOU"


def serve(folder: Path, port: int, browser: bool, token: str) -> NoReturn:
    """Replace this process by JupyterLab."""
    command = [sys.executable, "-m", "servelab.cli.server", str(folder), str(port), "1" if browser else "0"]
    environ = {**os.environ, TOKEN_VARIABLE: token}
    if os.name == "nt":
        sys.exit(subprocess.call(command, env=environ))
    os.execve(sys.executable, command, environ)
