"""The command: sections by name, results kept one by one, nothing of another machine."""

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import engine, suite
from benchmarks.contender.process import ContenderFailed
from benchmarks.report import Measurement, Report, Result, Target
from benchmarks.section import compare


@pytest.fixture
def command(monkeypatch):
    """Run the command over two sections that measure nothing, and return what it printed."""
    app = typer.Typer()
    app.command()(engine.main)
    calls = []

    def section(name, value):
        def run(bench, **options):
            bench.tell("working")
            calls.append((name, bench, options))
            return Result((Measurement(name, "ms", (value,)),), (Target(f"{name} target", value, "<=", 2.0, "ms"),))

        return run

    monkeypatch.setattr(engine, "SECTIONS", {"one": section("one", 1.0), "two": section("two", 3.0)})
    monkeypatch.setattr(engine, "measured_bandwidth", lambda device: 20e9)
    monkeypatch.setattr(engine, "measured_matmul_flops", lambda device: 100e9)
    monkeypatch.setattr(engine, "RESULTS", None)

    def run(*arguments):
        answer = CliRunner().invoke(app, [*map(str, arguments), "--threads", "1"])
        return answer.exit_code, " ".join(answer.output.split())

    run.calls = calls
    return run


def test_all_sections_are_measured_and_kept(command, tmp_path):
    path = tmp_path / "engine.json"
    code, output = command("--output", path, "--rounds", 3)
    assert code == 0, output
    assert "one target: 1 ms, <= 2 asked: met" in output
    assert "two target: 3 ms, <= 2 asked: MISSED" in output
    report = Report.load(path)
    assert list(report.sections) == ["one", "two"]
    section = report.sections["two"]
    assert section.settings["read_gbps"] == 20
    assert section.versions["torch"]
    assert len(section.commit) >= 7
    assert section.date.startswith("20")
    assert [(name, bench.rounds, bench.quick) for name, bench, _ in command.calls] == [
        ("one", 3, False),
        ("two", 3, False),
    ]


def test_one_section_leaves_the_others_as_they_were(command, tmp_path):
    path = tmp_path / "engine.json"
    command("--output", path)
    before = Report.load(path)
    command("two", "--output", path)
    after = Report.load(path)
    assert after.sections["one"] == before.sections["one"]
    assert [name for name, _, _ in command.calls] == ["one", "two", "two"]


def test_a_file_of_another_machine_is_begun_anew(command, tmp_path):
    path = tmp_path / "engine.json"
    Report("engine", {"name": "abacus"}).with_section("old", Result(())).save(path)
    code, output = command("one", "--output", path)
    assert code == 0
    assert "another machine (abacus)" in output
    assert list(Report.load(path).sections) == ["one"]


def test_a_trial_writes_nothing(command, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "RESULTS", tmp_path / "engine.json")
    assert command("--quick")[0] == 0
    assert not (tmp_path / "engine.json").exists()
    assert {(bench.rounds, bench.quick) for _, bench, _ in command.calls} == {(1, True)}


def test_an_unknown_section_is_named(command):
    code, output = command("three")
    assert code == 2
    assert "expected sections of one, two" in output
    assert command.calls == []


def test_a_contender_that_fails_is_one_sentence(command, monkeypatch):
    def fail(bench):
        raise ContenderFailed("vLLM ended with code 1: out of memory")

    monkeypatch.setitem(engine.SECTIONS, "one", fail)
    code, output = command("one")
    assert code == 1
    assert output.endswith("vLLM ended with code 1: out of memory")
    assert "Traceback" not in output


def test_contenders_can_be_left_out(command, monkeypatch):
    asked = []
    monkeypatch.setitem(engine.SECTIONS, "compare", compare.run)
    monkeypatch.setattr(compare, "run", lambda bench, names: asked.extend(names) or Result(()))
    assert command("compare", "--without", "vLLM", "--without", "transformers continuous")[0] == 0
    assert asked == ["servelab", "transformers static"]


def test_outside_of_a_clone_the_commit_is_unknown(monkeypatch, tmp_path):
    assert suite.commit().rstrip("+").isalnum()
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    assert suite.commit() == "unknown"
