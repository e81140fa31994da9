"""Pictures of a load: throughput, latencies and goodput against requests in flight, memory against time."""

import math

import pytest

from servelab.figures import load_curves, load_memory
from servelab.trace import LoadPoint, LoadReport, MemorySample, Quantiles, ServiceLevel


def point(streams, rate, tokens_per_s, tpot_ms, completed=10, good=None, concurrency=None):
    latency = Quantiles(tpot_ms, tpot_ms, 2 * tpot_ms, 3 * tpot_ms)
    return LoadPoint(
        arrival="concurrent" if streams else "poisson",
        streams=streams,
        rate_per_s=rate,
        start_s=10.0 * (streams or 1),
        end_s=10.0 * (streams or 1) + 5,
        concurrency=concurrency or streams or 1.0,
        completed=completed,
        failed=0,
        incomplete=0,
        prompt_tokens=64.0,
        output_tokens=32.0,
        requests_per_s=completed / 5,
        output_tokens_per_s=tokens_per_s,
        ttft_ms=Quantiles(100, 90, 200, 300) if completed else None,
        itl_ms=latency,
        tpot_ms=latency if completed else None,
        latency_ms=latency,
        good=good,
    )


def report(*points, level=None, samples=()):
    words = ("http://host", "toy", "concurrent", "guidellm 1", "2026-01-01", "64 tokens", "32 tokens")
    return LoadReport(*words, 0, level or ServiceLevel(), list(points), list(samples))


SAMPLES = (MemorySample(9, 0, 0, 0), MemorySample(12, 0.125, 1, 0), MemorySample(41, 0.5, 4, 3))


def test_levels_are_in_order_and_told_apart_by_more_than_colour():
    figure = load_curves(report(point(4, None, 120, 30), point(1, None, 40, 20)))
    rate, ttft, ttft_tail, tpot, tpot_tail = figure.data
    assert list(rate.x) == [1, 4]
    assert list(rate.y) == [40, 120]
    assert (list(ttft.y), list(ttft_tail.y)) == ([90, 90], [200, 200])
    assert (list(tpot.y), list(tpot_tail.y)) == ([20, 30], [40, 60])
    assert tpot.line.dash != tpot_tail.line.dash
    assert ttft.marker.symbol != tpot.marker.symbol
    assert figure.layout.yaxis2.type == "log"
    assert figure.layout.meta["sentence"] == (
        "From 1 to 4 requests in flight the server writes 40 and then 120 tokens a second, and the median time between "
        "two tokens of a request goes from 20 to 30 ms."
    )
    assert figure.layout.meta["alt"] == figure.layout.meta["sentence"]


def test_a_rate_stands_at_the_requests_that_it_kept_in_flight():
    figure = load_curves(report(point(None, 0.5, 16, 20, concurrency=1.6), point(1, None, 30, 20)))
    assert list(figure.data[0].x) == [1, 1.6]


def test_a_service_level_adds_its_share_and_its_limits():
    level = ServiceLevel(ttft_ms=150, tpot_ms=25)
    figure = load_curves(report(point(1, None, 40, 20, good=10), point(4, None, 120, 30, good=4), level=level))
    assert list(figure.data[-1].y) == [100, 40]
    assert [shape.y0 for shape in figure.layout.shapes] == [150, 25]
    assert [note.y for note in figure.layout.annotations] == [math.log10(150), math.log10(25)]
    low, high = (10**power for power in figure.layout.yaxis2.range)
    assert low < 20
    assert high > 200


def test_a_level_without_an_answer_is_left_out_and_none_at_all_is_refused():
    figure = load_curves(report(point(1, None, 40, 20), point(4, None, 0, 0, completed=0)))
    assert list(figure.data[0].x) == [1]
    assert figure.layout.meta["sentence"] == "With 1 in flight the server writes 40 tokens a second."
    with pytest.raises(ValueError, match="expected at least one level with a completed request, got none"):
        load_curves(report(point(4, None, 0, 0, completed=0)))


def test_memory_stands_against_time_with_each_level_named():
    figure = load_memory(report(point(1, None, 40, 20), point(4, None, 120, 30), samples=SAMPLES))
    usage, running, waiting = figure.data
    assert list(usage.x) == [9, 12, 41]
    assert list(usage.y) == [0, 12.5, 50]
    assert (list(running.y), list(waiting.y)) == ([0, 1, 4], [0, 0, 3])
    assert running.line.shape == "hv"
    assert running.line.dash != waiting.line.dash
    assert [note.text for note in figure.layout.annotations] == ["1 in flight", "4 in flight"]
    assert {(shape.x0, shape.x1) for shape in figure.layout.shapes} == {(10, 15), (40, 45)}
    assert figure.layout.meta["sentence"] == (
        "At most 50.0 % of the KV cache is in use, by 4 requests that run; at most 3 wait."
    )


def test_memory_without_metrics_is_refused():
    with pytest.raises(ValueError, match=r"expected samples of /metrics, got none"):
        load_memory(report(point(1, None, 40, 20)))
