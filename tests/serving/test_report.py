"""GuideLLM's JSON as the course's records, over two reports that it really left, cut down to what is read.

concurrent.json: 1 and 3 streams on this course's server with SmolLM2-135M. goodput.json: a search over GuideLLM's own
mock server, which fails every request after the 21st.
"""

import copy
import json
from pathlib import Path

import pytest

from servelab.serving.guidellm import LoadFailed
from servelab.serving.report import in_flight, read_report
from servelab.trace import LoadReport, ServiceLevel

RECORDED = Path(__file__).parent / "recorded"


def recorded(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


def read(content, level=None, begin_s=None):
    report = LoadReport("http://h", "toy", "concurrent", "", "", "", "", 0, level or ServiceLevel())
    read_report(content, report, begin_s)
    return report


def test_levels_in_turn():
    report = read(recorded("concurrent"))
    assert report.tool == "guidellm 0.8.1"
    first, second = report.points
    assert (first.arrival, first.streams, second.streams) == ("concurrent", 1, 3)
    assert (first.completed, first.failed, first.incomplete) == (5, 0, 0)
    assert first.start_s == 0
    assert first.end_s < second.start_s
    assert 0.9 < first.concurrency <= 1
    assert 1 < second.concurrency <= 3
    assert report.best_streams is None
    assert report.points[0].good is None


def test_latencies_are_those_that_guidellm_computes_too():
    content = recorded("concurrent")
    for level, point in zip(content["benchmarks"], read(content).points, strict=True):
        pairs = (("time_to_first_token_ms", point.ttft_ms, 1), ("inter_token_latency_ms", point.itl_ms, 1))
        for name, ours, scale in (*pairs, ("request_latency", point.latency_ms, 1000)):
            theirs = level["metrics"][name]["successful"]
            assert ours.mean == pytest.approx(scale * theirs["mean"], rel=1e-6), name
            for percentile, value in theirs["percentiles"].items():
                assert getattr(ours, percentile) == pytest.approx(scale * value), (name, percentile)


def test_throughput_counts_what_was_completed():
    content = recorded("concurrent")
    for level, point in zip(content["benchmarks"], read(content).points, strict=True):
        seconds = level["end_time"] - level["start_time"]
        tokens = [request["output_tokens"] for request in level["requests"]["successful"]]
        assert point.output_tokens_per_s == pytest.approx(sum(tokens) / seconds)
        assert point.output_tokens == pytest.approx(sum(tokens) / len(tokens))
        assert point.requests_per_s == pytest.approx(5 / seconds)


def test_goodput_is_that_of_guidellm_and_counts_failures():
    content = recorded("goodput")
    report = read(content, ServiceLevel(ttft_ms=170))
    assert report.best_streams == content["conclusions"][0]["best_passing_streams"]
    for level, point in zip(content["benchmarks"], report.points, strict=True):
        assert point.good == round(level["metrics"]["slo_attainment"] * level["metrics"]["slo_determined_requests"])
        assert point.goodput_share == point.good / (point.completed + point.failed)
    failing = [point for point in report.points if point.failed]
    assert failing
    assert failing[0].errors
    assert len(failing[0].errors) <= 5


def test_times_count_from_the_begin_of_the_watch():
    content = recorded("concurrent")
    begin_s = content["benchmarks"][0]["start_time"] - 7
    assert read(content, begin_s=begin_s).points[0].start_s == pytest.approx(7)


def test_a_service_level_of_all_three():
    content = recorded("concurrent")
    (tight, _), (loose, _) = (
        read(content, level).points for level in (ServiceLevel(latency_ms=0.001), ServiceLevel(1e9, 1e9, 1e9))
    )
    assert (tight.good, loose.good) == (0, 5)


def test_a_level_in_which_all_failed_has_no_latency():
    content = recorded("concurrent")
    level = content["benchmarks"][0]
    level["requests"]["errored"] = level["requests"].pop("successful")
    level["requests"]["successful"] = None
    point = read(content, ServiceLevel(ttft_ms=1)).points[0]
    assert (point.completed, point.failed, point.good) == (0, 5, 0)
    assert point.ttft_ms is point.latency_ms is point.tpot_ms is None
    assert point.errors == ["no reason given"]


def test_an_answer_of_one_token_has_no_time_between_tokens():
    content = recorded("concurrent")
    for request in content["benchmarks"][0]["requests"]["successful"]:
        request.update(inter_token_latency_ms=None, output_tokens=1)
    point = read(content, ServiceLevel(tpot_ms=1)).points[0]
    assert point.tpot_ms is point.itl_ms is None
    assert point.good == 5


def test_seconds_in_flight_are_those_within_the_level():
    def request(start, end, resolved=None):
        return {"info": {"timings": {"request_start": start, "request_end": end, "resolve_end": resolved}}}

    assert in_flight(10, 20, [request(8, 12), request(15, 25), request(11, None), request(None, None)]) == 2 + 5 + 9
    assert in_flight(10, 20, [request(11, None, 13)]) == 2


def test_rates_and_single_requests_are_told_apart():
    content = recorded("concurrent")
    first, second = content["benchmarks"]
    first["config"]["strategy"] = {"type_": "poisson", "rate": 2.5}
    second["config"]["strategy"] = {"type_": "synchronous"}
    poisson, single = read(content).points
    assert (poisson.arrival, poisson.streams, poisson.rate_per_s) == ("poisson", None, 2.5)
    assert (single.streams, single.rate_per_s) == (1, None)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("metadata", "version"), 3, "Expected a report of version 2 from GuideLLM, got version 3"),
        (("benchmarks",), [], "GuideLLM measured nothing: no level came to its end"),
        (("benchmarks", 0, "requests"), {}, "Expected the fields of a version 2 report from GuideLLM, got: KeyError"),
        (("benchmarks", 0, "start_time"), None, "Expected the fields of a version 2 report"),
        (("metadata",), None, "Expected the fields of a version 2 report"),
        (("benchmarks", 0), "cut", "Expected the fields of a version 2 report"),
    ],
)
def test_another_form_is_one_sentence(place, value, said):
    content = copy.deepcopy(recorded("concurrent"))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(LoadFailed, match=said):
        read(content)
    with pytest.raises(LoadFailed):
        read([])
