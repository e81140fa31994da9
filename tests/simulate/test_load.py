"""Arrivals: how many, when, and the same again for the same seed."""

import statistics

import pytest

from servelab.costs import RequestLength, workload
from servelab.simulate import Arrival, ClosedLoop, arrive_at_once, arrive_at_rate, equal_lengths


def test_at_once_keeps_order_and_lengths():
    lengths = workload(5, mean_tokens=40, max_tokens=100)
    arrivals = arrive_at_once(lengths)
    assert [(one.time_s, one.prompt_tokens, one.output_tokens) for one in arrivals] == [
        (0.0, length.prompt_tokens, length.output_tokens) for length in lengths
    ]
    assert [one.num_tokens for one in arrivals] == [length.num_tokens for length in lengths]


def test_a_poisson_process_has_its_rate_and_its_spread():
    arrivals = arrive_at_rate(equal_lengths(20_000, 1, 1), 4.0, seed=1)
    times = [one.time_s for one in arrivals]
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert times == sorted(times)
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)  # as large as the mean: exponential


def test_the_seed_decides():
    lengths = equal_lengths(10, 3, 4)
    assert arrive_at_rate(lengths, 1.0, seed=3) == arrive_at_rate(lengths, 1.0, seed=3)
    assert arrive_at_rate(lengths, 1.0, seed=3) != arrive_at_rate(lengths, 1.0, seed=4)


def test_a_closed_loop_begins_with_one_request_a_user():
    loop = ClosedLoop([RequestLength(number, 1) for number in range(1, 6)], users=2)
    assert loop.first() == [Arrival(0.0, 1, 1), Arrival(0.0, 2, 1)]
    assert [length.prompt_tokens for length in loop.later()] == [3, 4, 5]
    assert ClosedLoop(equal_lengths(2, 1, 1), users=9).later() == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: equal_lengths(0, 1, 1), "num_requests as an integer >= 1, got 0"),
        (lambda: equal_lengths(1, 1.5, 1), "prompt_tokens as an integer >= 1, got 1.5"),
        (lambda: equal_lengths(1, 1, 0), "output_tokens as an integer >= 1, got 0"),
        (lambda: arrive_at_rate([], 0), "requests_per_s above 0, got 0"),
        (lambda: arrive_at_rate([], float("nan")), "requests_per_s above 0, got nan"),
        (lambda: ClosedLoop([], 0), "users as an integer >= 1, got 0"),
        (lambda: ClosedLoop([], 1, -1), "think_s as seconds of at least 0, got -1"),
    ],
)
def test_what_cannot_be(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
