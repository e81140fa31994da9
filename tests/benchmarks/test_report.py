"""A report keeps every sample, and says what a sample set amounts to."""

import json

import pytest

from benchmarks.report import Measurement, Report, Result, Target

MEASUREMENT = Measurement("decode", "tokens/s", (30.0, 10.0, 20.0, 50.0, 40.0), {"system": "servelab", "requests": 4})
TARGET = Target("decode against vLLM", 1.3, ">=", 1.25)


def make_report():
    result = Result((MEASUREMENT,), (TARGET,), {"threads": 2}, {"torch": "2.13"}, "abc1234567", "2026-11-29T20:00", 3.5)
    return Report("engine", {"name": "a machine", "memory_gb": 24}).with_section("compare", result)


def test_what_is_saved_is_loaded(tmp_path):
    make_report().save(tmp_path / "new" / "engine.json")
    assert Report.load(tmp_path / "new" / "engine.json") == make_report()


def test_saved_numbers_have_five_digits(tmp_path):
    report = Report("engine", {}).with_section("step", Result((Measurement("step", "ms", (1 / 3,)),)))
    report.save(tmp_path / "engine.json")
    assert json.loads((tmp_path / "engine.json").read_text())["sections"]["step"]["measurements"][0]["samples"] == [
        0.33333
    ]


def test_a_section_measured_again_replaces_itself_alone():
    again = Result((Measurement("decode", "tokens/s", (1.0,)),))
    report = make_report().with_section("step", again).with_section("compare", again)
    assert report.sections == {"compare": again, "step": again}


def test_median_and_quartiles():
    assert MEASUREMENT.median == 30
    assert MEASUREMENT.quartiles == (20, 40)
    assert Measurement("x", "ms", (7.0,)).quartiles == (7, 7)


@pytest.mark.parametrize(
    ("value", "relation", "bar", "met"),
    [(2, ">=", 2, True), (1.9, ">=", 2, False), (2, "<=", 2, True), (3, "<=", 2, False)],
)
def test_a_target_is_met_or_says_so(value, relation, bar, met):
    target = Target("speed", value, relation, bar)
    assert target.is_met == met
    assert str(target).endswith("met" if met else "MISSED")


def test_a_target_of_another_relation():
    with pytest.raises(ValueError, match='expected the relation ">=" or "<="'):
        Target("speed", 1, "<", 2)


def test_find_names_what_it_did_not_find():
    result = make_report().sections["compare"]
    assert result.find("decode", system="servelab") is MEASUREMENT
    with pytest.raises(ValueError, match=r"expected one measurement 'decode' with .*vLLM.*, got 0"):
        result.find("decode", system="vLLM")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 0, "suite": "engine", "machine": {}, "sections": {}}'])
def test_another_file_is_no_report(tmp_path, text):
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(ValueError, match="expected a report of version 1"):
        Report.load(tmp_path / "engine.json")
