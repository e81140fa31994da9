"""The command line is quick to load, and passes on what the rooms say."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import servelab
from servelab import cli
from servelab.cli import app
from servelab.device import doctor
from servelab.device.doctor import Line


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_version(run):
    assert run("--version").output.strip() == f"servelab {servelab.__version__}"


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom servelab.cli import main\nsys.argv = ['servelab', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted(m for m in ('torch', 'transformers', 'plotly', 'jupyterlab') if m in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "doctor" in answer.stdout
    assert "lab" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("problem", 1)])
def test_the_doctors_exit_code(run, monkeypatch, status, code):
    monkeypatch.setattr(
        doctor, "report", lambda: [Line("disk", status, "3 GB free", "" if status == "ok" else "Free.")]
    )
    answer = run("doctor")
    assert answer.exit_code == code
    assert "3 GB free" in answer.output


def test_lab_passes_port_and_browser(run, monkeypatch):
    seen = []
    monkeypatch.setattr("servelab.cli.launch.start", lambda port, browser: seen.append((port, browser)))
    run("lab")
    run("lab", "--port", "8899", "--no-browser")
    assert seen == [(cli.DEFAULT_PORT, True), (8899, False)]


def test_what_is_in_the_way_is_one_sentence(run, monkeypatch):
    from servelab.cli.launch import CannotStart

    def fail(port, browser):
        raise CannotStart("The disk is full: free about 1 GB.")

    monkeypatch.setattr("servelab.cli.launch.start", fail)
    answer = run("lab")
    assert answer.exit_code == 1
    assert answer.output.strip() == "The disk is full: free about 1 GB."


def test_an_impossible_port_is_refused(run):
    answer = run("lab", "--port", "70000")
    assert answer.exit_code == 2
    assert answer.output


def test_stopping_while_the_model_is_prepared(run, monkeypatch):
    def stop(port, browser):
        raise KeyboardInterrupt

    monkeypatch.setattr("servelab.cli.launch.start", stop)
    answer = run("lab")
    assert answer.exit_code == 130
    assert answer.output.strip() == "Stopped: run `make lab` to go on."
