"""A suite of one section: what was measured is kept with machine, versions and commit, and its targets are told."""

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import suite
from benchmarks.contender.process import ContenderFailed
from benchmarks.report import Measurement, Report, Result, Target


def measure(bench):
    bench.tell("serving")
    return Result((Measurement("x", "x", (1.0,)),), (Target("TTFT: off by", 0.3, "<=", 0.2, "of 1"),))


@pytest.fixture
def call(monkeypatch, tmp_path):
    """The command line of a suite whose section is `run`."""
    monkeypatch.setattr(suite, "FOLDER", tmp_path)

    def call(*arguments, run=measure):
        app = typer.Typer()
        app.command()(suite.command("small", "loads", run))
        return CliRunner().invoke(app, [*map(str, arguments), "--model", "toy", "--threads", "1"])

    return call


def test_what_is_measured_is_kept(call, tmp_path):
    answer = call()
    assert answer.exit_code == 0, answer.output
    assert "serving" in answer.output
    assert "TTFT: off by: 0.3 of 1, <= 0.2 asked: MISSED" in answer.output
    report = Report.load(tmp_path / "small.json")
    assert report.suite == "small"
    section = report.sections["loads"]
    assert section.settings["model"] == "toy"
    assert section.versions["torch"]
    assert section.date.startswith("20")
    assert len(section.commit) >= 7


def test_a_trial_writes_nothing(call, tmp_path):
    answer = call("--quick")
    assert answer.exit_code == 0
    assert "Written" not in answer.output
    assert not list(tmp_path.iterdir())


def test_a_contender_that_fails_is_one_sentence(call):
    def fail(bench):
        raise ContenderFailed("vLLM ended")

    answer = call(run=fail)
    assert answer.exit_code == 1
    assert answer.output.strip() == "vLLM ended"
