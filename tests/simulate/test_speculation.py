"""Drafts on paper: how many stand."""

import random

import pytest

from servelab.costs import expected_tokens_per_step
from servelab.simulate import Drafting


def test_in_the_mean_as_many_stand_as_the_formula_says():
    drafting, generator = Drafting(4, 0.7), random.Random(0)
    counts = [len(drafting.verify(4, generator).token_ids) for _ in range(20_000)]
    assert sum(counts) / len(counts) == pytest.approx(expected_tokens_per_step(0.7, 4), rel=0.02)


def test_the_draws_say_why():
    drafting, generator = Drafting(5, 0.6), random.Random(1)
    for _ in range(50):
        found = drafting.verify(5, generator)
        stands = [draw < 0.6 for draw in found.u]
        assert all(stands[: found.num_accepted])
        assert found.num_accepted == 5 or not stands[found.num_accepted]
        assert (found.p, found.q, len(found.token_ids)) == ([0.6] * 5, [1.0] * 5, found.num_accepted + 1)


def test_all_and_none():
    assert Drafting(3, 1.0).verify(3, random.Random(0)).num_accepted == 3
    assert Drafting(3, 0.0).verify(3, random.Random(0)).num_accepted == 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0, 0.5), "k as an integer >= 1, got 0"),
        ((1.5, 0.5), "k as an integer >= 1, got 1.5"),
        ((1, 1.1), r"acceptance in 0\.\.1, got 1.1"),
        ((1, float("nan")), r"acceptance in 0\.\.1, got nan"),
        ((1, 0.5, -1), "draft_cost of at least 0, got -1"),
    ],
)
def test_what_cannot_be(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        Drafting(*values)
