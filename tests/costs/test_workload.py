"""The committed workload: its mean, its shape, and that it is the same everywhere."""

import hashlib
from statistics import mean, median

import pytest

from servelab.costs import RequestLength, blocks_needed, paged_waste, requests_that_fit, workload


def lengths(**options) -> list[int]:
    return [request.num_tokens for request in workload(**options)]


def test_the_default_workload_is_the_committed_one():
    text = ",".join(f"{request.prompt_tokens}+{request.output_tokens}" for request in workload())
    assert workload()[0] == RequestLength(prompt_tokens=392, output_tokens=102)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "afa8c64374a4abef"


@pytest.mark.parametrize(("num_requests", "mean_tokens"), [(100, 300), (500, 300), (500, 80), (500, 1200)])
def test_the_mean_is_what_was_asked_for(num_requests, mean_tokens):
    assert mean(lengths(num_requests=num_requests, mean_tokens=mean_tokens)) == pytest.approx(mean_tokens, rel=0.01)


def test_most_requests_are_short_and_a_few_are_long():
    tokens = lengths()
    assert median(tokens) < 0.75 * mean(tokens)
    assert max(tokens) == 2048
    assert 0.03 < sum(length > 3 * 300 for length in tokens) / len(tokens) < 0.07


def test_prompt_and_output_are_told_apart():
    for request in workload(num_requests=200, mean_tokens=20):
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        assert request.num_tokens == request.prompt_tokens + request.output_tokens
    shares = [request.output_tokens / request.num_tokens for request in workload()]
    assert 0.15 < min(shares) < 0.25
    assert 0.75 < max(shares) < 0.85


def test_the_seed_shuffles_but_does_not_change_the_lengths():
    assert workload(seed=3) == workload(seed=3)
    assert workload(seed=3) != workload(seed=4)
    assert sorted(lengths(seed=3)) == sorted(lengths(seed=4))


def test_the_first_requests_are_typical():
    """A pool that only the first dozen fit must not see a freak sample."""
    assert mean(lengths()[:11]) == pytest.approx(300, rel=0.1)
    assert mean(lengths()[:76]) == pytest.approx(300, rel=0.05)


def test_paged_waste_on_the_workload_is_under_four_percent():
    tokens = lengths()
    owned = sum(blocks_needed(length, 16) * 16 for length in tokens)
    assert paged_waste(tokens, 16) / owned < 0.04
    assert requests_that_fit(512 * 2**20, 23_040, 300, block_size=16) == 76


@pytest.mark.parametrize("options", [{"num_requests": 0}, {"mean_tokens": 1}, {"mean_tokens": 2048}])
def test_bad_options_are_named(options):
    with pytest.raises(ValueError, match=f"expected .*{next(iter(options))}.* got"):
        workload(**options)
