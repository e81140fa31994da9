"""The acceptance rate, expected tokens, speed-up and the price of verification, against numbers worked out by hand."""

import itertools
import math
import random

import pytest

from servelab.costs import (
    acceptance_rate,
    expected_tokens_per_step,
    residual,
    speculation_speedup,
    verification_cost,
)

P, Q = (0.5, 0.3, 0.2), (0.2, 0.7, 0.1)


def test_the_course_example_of_acceptance_seven_tenths() -> None:
    assert expected_tokens_per_step(0.7, 4) == pytest.approx(1 + 0.7 + 0.49 + 0.343 + 0.2401)
    assert speculation_speedup(0.7, 4, draft_cost=0.1) == pytest.approx(1.98, abs=0.005)
    assert speculation_speedup(0.7, 8, draft_cost=0.1) == pytest.approx(1.78, abs=0.005)


@pytest.mark.parametrize(("acceptance", "k", "tokens"), [(0.0, 5, 1), (1.0, 5, 6), (0.5, 0, 1), (0.5, 1, 1.5)])
def test_the_ends_of_the_range(acceptance: float, k: int, tokens: float) -> None:
    assert expected_tokens_per_step(acceptance, k) == tokens


def test_expected_tokens_are_the_mean_of_a_simulation() -> None:
    draw = random.Random(1)
    counts = [1 + sum(1 for _ in itertools.takewhile(lambda _: draw.random() < 0.6, range(3))) for _ in range(20_000)]
    assert sum(counts) / len(counts) == pytest.approx(expected_tokens_per_step(0.6, 3), rel=0.02)


def test_verification_has_a_price_beside_drafting() -> None:
    assert speculation_speedup(0.5, 1, 0.1, verify_cost=1.2) == pytest.approx(1.5 / 1.3)
    assert speculation_speedup(0.5, 1, 0.0, verify_cost=1.5) == 1.0
    assert speculation_speedup(0.9, 0, 0.3) == 1.0
    assert speculation_speedup(0.0, 4, 0.1) == pytest.approx(1 / 1.4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens_per_step(1.1, 2), "acceptance in 0..1, got 1.1"),
        (lambda: expected_tokens_per_step(-0.1, 2), "acceptance in 0..1, got -0.1"),
        (lambda: expected_tokens_per_step(math.nan, 2), "acceptance in 0..1, got nan"),
        (lambda: expected_tokens_per_step(0.5, -1), "k >= 0 draft tokens, got -1"),
        (lambda: speculation_speedup(0.5, 2, -0.1), "draft_cost >= 0 and verify_cost > 0, got -0.1 and 1.0"),
        (lambda: speculation_speedup(0.5, 2, math.nan), "draft_cost >= 0 and verify_cost > 0, got nan"),
        (lambda: speculation_speedup(0.5, 2, 0.1, 0.0), "draft_cost >= 0 and verify_cost > 0, got 0.1 and 0.0"),
        (lambda: speculation_speedup(0.5, 2, 0.1, math.nan), "draft_cost >= 0 and verify_cost > 0, got 0.1 and nan"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_one_rejection_by_hand() -> None:
    """p = (.5, .3, .2), q = (.2, .7, .1): accepted .6, residual (.75, 0, .25), and what comes out is p."""
    assert acceptance_rate(P, Q) == pytest.approx(0.6)
    replacement = residual(P, Q)
    assert replacement == pytest.approx([0.75, 0, 0.25])
    accepted = [min(target, draft) for target, draft in zip(P, Q, strict=True)]
    assert [a + 0.4 * r for a, r in zip(accepted, replacement, strict=True)] == pytest.approx(P)
    # Drawing the replacement from p instead makes the second token the most likely one.
    assert [a + 0.4 * p for a, p in zip(accepted, P, strict=True)] == pytest.approx([0.4, 0.42, 0.18])


def test_a_draft_like_the_target_is_always_accepted_and_leaves_nothing() -> None:
    assert acceptance_rate(P, P) == pytest.approx(1)
    assert acceptance_rate((1, 0), (0, 1)) == 0
    assert residual((1, 0), (0, 1)) == [1, 0]
    with pytest.raises(ValueError, match="expected q to differ from p"):
        residual(P, P)


@pytest.mark.parametrize("function", [acceptance_rate, residual])
@pytest.mark.parametrize("wrong", [(0.5, 0.6, 0.2), (0.5, 0.3, 0.1), (0.5, 0.7, -0.2), (0.5, float("nan"), 0.5)])
def test_what_is_no_distribution_is_refused(function, wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected p as probabilities >= 0 with sum 1, got"):
        function(wrong, Q)
    with pytest.raises(ValueError, match="expected q as probabilities >= 0 with sum 1, got"):
        function(P, wrong)
    with pytest.raises(ValueError, match="expected p and q over one vocabulary, got 3 and 2 tokens"):
        function(P, (0.5, 0.5))


def test_verifying_for_a_full_batch_costs_as_much_as_decoding() -> None:
    """A token costs 5 % of a step: alone 4 more take 1.2 steps; in the limit k + 1 tokens cost k + 1 steps."""
    assert verification_cost(0.05, batch_size=1, k=4) == pytest.approx(1.2)
    assert verification_cost(0.05, batch_size=16, k=1) == pytest.approx((1 + 31 * 0.05) / (1 + 15 * 0.05))
    assert verification_cost(0.05, batch_size=100_000, k=4) == pytest.approx(5, abs=0.01)
    assert verification_cost(0.0, 16, 4) == verification_cost(0.3, 16, 0) == 1


@pytest.mark.parametrize("arguments", [(-0.1, 1, 1), (math.nan, 1, 1), (0.1, 0, 1), (0.1, 1, -1)])
def test_a_verification_cost_without_sense_is_refused(arguments) -> None:
    with pytest.raises(ValueError, match="expected token_cost >= 0, batch_size >= 1 and k >= 0"):
        verification_cost(*arguments)
