"""`servelab lab` prepares, says what changed, and names what is in its way in one sentence."""

import errno
import os
import socket
import sys
from pathlib import Path

import pytest

import servelab.model
from servelab.cli import launch
from servelab.cli.launch import CannotStart
from servelab.course import workspace
from servelab.course.workspace import SyncReport


class Started(Exception):
    """Stands for the end of this process."""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course folder that is the current one, with a model that is ready and a workspace that is up to date."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "src" / "servelab").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JUPYTER_TOKEN", raising=False)
    monkeypatch.setattr(servelab.model, "prepare_model", lambda name, progress: tmp_path)
    monkeypatch.setattr(workspace, "sync", lambda root: SyncReport())
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    calls = []

    def serve(*arguments):
        calls.append(arguments)
        raise Started

    monkeypatch.setattr(launch, "serve", serve)
    return calls


@pytest.fixture
def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_it_serves_the_workspace_under_a_new_token(course, started, free_port, capsys):
    for _ in range(2):
        with pytest.raises(Started):
            launch.start(free_port, browser=True)
    (folder, port, browser, token), (*_, other) = started
    assert (folder, port, browser) == (course / "workspace", free_port, True)
    assert len(token) >= 32
    assert token != other
    assert f"http://127.0.0.1:{free_port}/lab/tree/00_start_here.ipynb?token={token}" in capsys.readouterr().out


def test_a_remote_machine_prints_the_tunnel(course, started, free_port, monkeypatch, capsys):
    monkeypatch.setattr(launch.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(launch.platform, "node", lambda: "gpu-box")
    with pytest.raises(Started):
        launch.start(free_port, browser=False)
    assert f"ssh -N -L {free_port}:127.0.0.1:{free_port} ada@gpu-box" in capsys.readouterr().out


def test_a_user_without_a_name_still_gets_the_tunnel(monkeypatch):
    def nameless():
        raise KeyError("uid not found")

    monkeypatch.setattr(launch.getpass, "getuser", nameless)
    assert "YOU@" in launch.address(8899, "t", browser=False)


def test_a_taken_port_names_one_that_is_free(course, started):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(CannotStart) as stopped:
            launch.start(port, browser=True)
    said = str(stopped.value)
    assert said.startswith(f"Port {port} is taken: ")
    other = int(said.partition("PORT=")[2].rstrip("`."))
    assert port < other
    assert started == []
    with pytest.raises(Started):
        launch.start(port, browser=True)


def test_a_port_that_was_closed_a_moment_ago_is_free(free_port):
    with socket.create_server(("127.0.0.1", free_port)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
    launch.check_port(free_port)
    assert launch._is_free(free_port)


def test_a_model_that_cannot_be_had_is_one_sentence(course, started, free_port, monkeypatch):
    def fail(name, progress):
        raise servelab.model.ModelUnavailable("Cannot fetch it: connect to the network once and start again.")

    monkeypatch.setattr(servelab.model, "prepare_model", fail)
    with pytest.raises(CannotStart, match=r"^Cannot fetch it: connect to the network once and start again\.$"):
        launch.start(free_port, browser=True)


def test_a_broken_torch_points_to_the_doctor(course, started, free_port, monkeypatch):
    monkeypatch.setitem(sys.modules, "servelab.model", None)
    with pytest.raises(CannotStart, match=r"`\.venv/bin/servelab doctor` says what to repair"):
        launch.start(free_port, browser=True)


def test_a_full_disk_while_the_workspace_is_written(course, started, free_port, monkeypatch):
    def full(root):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workspace, "sync", full)
    with pytest.raises(CannotStart, match=r"^The disk is full: free about 1 GB"):
        launch.start(free_port, browser=True)


def test_a_workspace_that_cannot_be_written_names_it(course, started, free_port, monkeypatch):
    def refused(root):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root / "workspace"))

    monkeypatch.setattr(workspace, "sync", refused)
    with pytest.raises(CannotStart, match=r"^Cannot write .*workspace \(Permission denied\): make"):
        launch.start(free_port, browser=True)


def test_a_course_without_notebooks_is_one_sentence(course, started, free_port, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(course)
    monkeypatch.setattr(servelab.model, "prepare_model", lambda name, progress: course)
    monkeypatch.setattr(launch, "serve", lambda *arguments: None)
    with pytest.raises(CannotStart, match=r"^The course is not complete \(expected notebooks in .*: run `git restore"):
        launch.start(free_port, browser=True)


def test_what_changed_in_the_workspace_is_said(course, monkeypatch, capsys):
    report = SyncReport(
        ["00.ipynb"], ["01.ipynb"], ["03.ipynb"], {"02.ipynb": "02.new.ipynb"}, {"01.ipynb": "01.b.ipynb"}
    )
    monkeypatch.setattr(workspace, "sync", lambda root: report)
    launch.prepare_workspace(course)
    assert capsys.readouterr().out.splitlines() == [
        "New in workspace/: 00.ipynb",
        "Brought up to date in workspace/: 01.ipynb",
        "The results you had in 01.ipynb are kept in 01.b.ipynb",
        "You changed 02.ipynb, so it stays as it is; the new version is 02.new.ipynb",
    ]


def test_the_course_is_found_from_a_folder_inside_it(course, monkeypatch):
    (course / "workspace").mkdir()
    monkeypatch.chdir(course / "workspace")
    assert launch.course_root() == course


def test_the_course_is_found_from_anywhere_when_it_was_installed_in_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert launch.course_root() == Path(servelab.__file__).parents[2]


def test_no_course_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.servelab, "__file__", str(tmp_path / "a" / "b" / "servelab" / "__init__.py"))
    with pytest.raises(CannotStart, match="run `servelab lab` in the folder that you cloned"):
        launch.course_root()


def test_the_token_travels_in_the_environment(monkeypatch, tmp_path):
    seen = {}

    def execve(program, command, environ):
        seen.update(command=command, token=environ["JUPYTER_TOKEN"])
        raise Started

    monkeypatch.setattr(launch.os, "execve", execve)
    with pytest.raises(Started):
        launch.serve(tmp_path, 8899, False, "secret")
    assert seen["token"] == "secret"
    assert not any("secret" in part for part in seen["command"])
