"""Records of a load: percentiles, service levels, goodput, and the way to a file and back."""

import json

import pytest

from servelab.trace import LoadPoint, LoadReport, MemorySample, Quantiles, ServiceLevel

QUANTILES = Quantiles(30.0, 20.0, 60.0, 90.0)


def point(**changes):
    fields = {
        "arrival": "concurrent",
        "streams": 4,
        "rate_per_s": None,
        "start_s": 1.0,
        "end_s": 6.0,
        "concurrency": 3.9,
        "completed": 8,
        "failed": 2,
        "incomplete": 1,
        "prompt_tokens": 64.0,
        "output_tokens": 32.0,
        "requests_per_s": 1.6,
        "output_tokens_per_s": 51.2,
        "ttft_ms": QUANTILES,
        "itl_ms": QUANTILES,
        "tpot_ms": None,
        "latency_ms": QUANTILES,
        "good": 6,
        "errors": ["busy"],
    }
    return LoadPoint(**(fields | changes))


def report():
    level = ServiceLevel(ttft_ms=100)
    return LoadReport(
        "http://host", "toy", "concurrent", "guidellm 1", "2026-01-01", "64 tokens", "32 tokens", 7, level,
        [point(), point(streams=None, rate_per_s=2.5)], [MemorySample(0.5, 0.25, 3, 1)], 4,
    )  # fmt: skip


def test_a_percentile_is_a_value_that_was_measured():
    values = list(range(1, 101))
    assert Quantiles.of(values) == Quantiles(50.5, 50, 95, 99)
    assert Quantiles.of([7.0]) == Quantiles(7, 7, 7, 7)
    assert Quantiles.of([]) is None


def test_weights_count_a_value_more_often():
    once_each = Quantiles.of([1.0] * 10 + [9.0] * 90)
    assert Quantiles.of([1.0, 9.0], [10, 90]) == once_each
    assert Quantiles.of([1.0, 9.0], [0, 0]) is None


def test_a_service_level_asks_only_for_what_it_names():
    level = ServiceLevel(ttft_ms=100, tpot_ms=20)
    assert level.is_kept(100, 20, 1e9)
    assert not level.is_kept(100.1, 20, 0)
    assert not level.is_kept(100, 20.1, 0)
    assert level.is_kept(100, None, 0)  # one token: nothing to wait for between tokens
    assert not ServiceLevel().asks
    for value in (0, -1, float("inf"), "10"):
        with pytest.raises(ValueError, match="expected latency_ms as a positive number of milliseconds"):
            ServiceLevel(latency_ms=value)


def test_goodput_counts_what_failed_and_not_what_was_cut_off():
    assert point().goodput_share == 0.6
    assert point().goodput_per_s == 1.2
    assert point(good=None).goodput_share is None
    assert point(good=None).goodput_per_s is None
    assert point(completed=0, failed=0, good=0).goodput_share is None


def test_a_level_is_named_by_what_was_asked():
    assert point().label == "4"
    assert point(streams=None, rate_per_s=2.5).label == "2.5/s"
    assert point(streams=None, arrival="throughput").label == "throughput"


def test_a_report_comes_back_from_its_file(tmp_path):
    path = report().save(tmp_path / "load.json")
    assert LoadReport.load(path) == report()
    assert json.loads(path.read_text())["format"] == "servelab-load"


def drop(data, name):
    return {key: value for key, value in data.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: [], "expected JSON with format 'servelab-load'"),
        (lambda data: data | {"version": 9}, "expected a report of version 1, got version 9"),
        (lambda data: drop(data, "points"), "expected the fields of a version 1 report, got: 'points'"),
        (lambda data: data | {"points": [drop(data["points"][0], "streams")]}, "streams"),
        (lambda data: data | {"points": [drop(data["points"][0], "ttft_ms")]}, "ttft_ms"),
        (lambda data: data | {"samples": [{"t_s": 1}]}, "expected the fields of a version 1 report"),
        (lambda data: data | {"more": 1}, "more"),
    ],
)
def test_another_file_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        LoadReport.from_json(change(json.loads(json.dumps(report().to_json()))))


def test_a_file_that_ends_early_is_refused(tmp_path):
    path = report().save(tmp_path / "load.json")
    path.write_text(path.read_text()[:200])
    with pytest.raises(ValueError, match="expected a whole JSON report in"):
        LoadReport.load(path)
