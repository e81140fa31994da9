"""What the README says was measured is what the results say."""

import math

import pytest

from benchmarks import readme
from benchmarks.contender.process import ROOT
from benchmarks.engine import RESULTS
from benchmarks.report import Measurement, Report, Result, Target

MACHINE = {"name": "Abacus, 2 cores", "instructions": "AVX2", "memory_gb": 24}


def speed(name, system, requests, *samples, context=100):
    return Measurement(name, "tokens/s", samples, {"system": system, "requests": requests, "context": context})


@pytest.fixture
def report():
    measurements = [
        speed(name, system, requests, *samples)
        for name in ("decode", "prefill")
        for system, requests, samples in (
            ("servelab", 1, (50.0, 52.0, 54.0)),
            ("vLLM", 1, (30.0,)),
            ("servelab", 16, (2000.0,)),
        )
    ]
    targets = (Target("decode against vLLM, 1 x 100 tokens", 1.7333, ">=", 1.25),)
    settings = {"dtype": "float32", "threads": 2, "rounds": 3}
    versions = {"python": "3.11.7", "torch": "2.13.0", "vllm": "0.32.0"}
    compared = Result(tuple(measurements), targets, settings, versions, "abc1234567", "2026-11-29T20:00+00:00")
    others = Result((), (Target("step", 2.0, "<=", 1.6), Target("memory", 1234.5, "<=", 400, "MB")))
    return Report("engine", MACHINE, {"step": others, "compare": compared})


def test_the_readme_is_what_was_measured():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.renewed(text, Report.load(RESULTS)) == text, "run `python -m benchmarks.readme`"
    assert (ROOT / readme.PICTURE).read_bytes()[:4] == b"\x89PNG"


def test_tables_have_a_row_a_load_and_say_what_is_missing(report):
    lines = readme.section(report).splitlines()
    assert "| Decode | servelab | vLLM |" in lines
    assert "| 1 x 100 tokens | 52 (51 to 53) | 30 (30 to 30) |" in lines
    assert "| 16 x 100 tokens | 2,000 (2,000 to 2,000) | not run |" in lines
    assert "| step | 2 x | at most 1.6 | **missed** |" in lines
    assert "| memory | 1,234 MB | at most 400 | **missed** |" in lines
    assert not any(line.startswith("| decode against") for line in lines)


def test_the_machine_the_commit_and_the_versions_are_named(report):
    first = readme.section(report).splitlines()[0]
    for fact in ("Abacus, 2 cores", "abc1234567", "2026-11-29", "vLLM 0.32.0", "transformers left out", "float32"):
        assert fact in first


def test_the_picture_tells_its_finding(report):
    figure = readme.picture(report.sections["compare"])
    lines = {trace.name: list(trace.y) for trace in figure.data if trace.mode == "lines+markers"}
    assert lines["servelab, 100 tokens"] == [52, 2000]
    assert lines["vLLM, 100 tokens"][0] == 30
    assert math.isnan(lines["vLLM, 100 tokens"][1])
    assert "1.73 to 1.73" in readme.alt(report.sections["compare"])
    assert "vLLM" not in readme.alt(Result(()))


def test_only_what_stands_between_the_marks_is_renewed(report):
    old = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n"
    new = readme.renewed(old, report)
    assert new.startswith(f"before\n{readme.BEGIN}\nMeasured on")
    assert new.endswith(f"\n{readme.END}\nafter\n")
    assert readme.renewed(new, report) == new
    with pytest.raises(ValueError, match="expected <!-- measured: begin -->"):
        readme.renewed("no marks", report)


def test_the_command_writes_both(report, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("plotly.graph_objects.Figure.write_image", lambda self, path, **options: drawn.append(path))
    (tmp_path / "README.md").write_text(f"{readme.BEGIN}{readme.END}")
    report.save(tmp_path / "engine.json")
    readme.main(tmp_path / "README.md", tmp_path / "engine.json")
    assert "Measured on Abacus" in (tmp_path / "README.md").read_text()
    assert drawn == [tmp_path / readme.PICTURE]
