"""Expected tokens, speed-up and the price of verification, against numbers worked out by hand."""

import itertools
import random

import pytest

from servelab.costs import batch_verify_cost, expected_tokens_per_step, speculation_speedup


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
    assert speculation_speedup(0.5, 1, 0.1, 0.2) == pytest.approx(1.5 / 1.3)
    assert speculation_speedup(0.5, 1, 0.0, 0.5) == 1.0
    assert speculation_speedup(0.9, 0, 0.3, 0.3) == 1.0


def test_verifying_for_a_full_batch_costs_as_much_as_decoding() -> None:
    assert batch_verify_cost(0.05, 1) == pytest.approx(0.05)
    assert batch_verify_cost(0.05, 16) == pytest.approx(0.8 / 1.75)
    assert batch_verify_cost(0.05, 10_000) == pytest.approx(1.0, abs=0.01)
    assert batch_verify_cost(0.0, 16) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens_per_step(1.1, 2), "acceptance in 0..1, got 1.1"),
        (lambda: expected_tokens_per_step(float("nan"), 2), "acceptance in 0..1, got nan"),
        (lambda: expected_tokens_per_step(0.5, -1), "k >= 0 draft tokens, got -1"),
        (lambda: speculation_speedup(0.5, 2, -0.1), "draft_cost >= 0, got -0.1"),
        (lambda: speculation_speedup(0.5, 2, 0.1, float("nan")), "verify_cost >= 0, got nan"),
        (lambda: batch_verify_cost(-1.0, 2), "token_cost >= 0, got -1.0"),
        (lambda: batch_verify_cost(0.1, 0), "batch_size >= 1, got 0"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
