"""The command: what was measured is written with machine, versions and commit, and its targets are told."""

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import simulate
from benchmarks.report import Measurement, Report, Result, Target


@pytest.fixture
def command(monkeypatch):
    app = typer.Typer()
    app.command()(simulate.main)

    def run(bench):
        bench.tell("serving")
        return Result((Measurement("x", "x", (1.0,)),), (Target("TTFT: off by", 0.3, "<=", 0.2, "of 1"),))

    monkeypatch.setattr(simulate.simulate, "run", run)
    monkeypatch.setattr(simulate, "RESULTS", None)
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments), "--model", "toy", "--threads", "1"])


def test_what_is_measured_is_kept(command, tmp_path):
    path = tmp_path / "simulate.json"
    answer = command("--output", path)
    assert answer.exit_code == 0, answer.output
    assert "serving" in answer.output
    assert "TTFT: off by: 0.3 of 1, <= 0.2 asked: MISSED" in answer.output
    report = Report.load(path)
    assert report.suite == "simulate"
    section = report.sections["loads"]
    assert section.settings["model"] == "toy"
    assert section.versions["torch"]
    assert section.date.startswith("20")
    assert len(section.commit) >= 7


def test_a_trial_writes_nothing(command):
    answer = command("--quick")
    assert answer.exit_code == 0
    assert "Written" not in answer.output
