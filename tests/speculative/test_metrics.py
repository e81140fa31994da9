"""Counts and rates of drafts, by hand."""

import pytest

from servelab.speculative import SpeculationMetrics


def test_counts_of_one_request() -> None:
    """Four rows of a step: 4 drafted and 2 accepted, 4 and 4, 2 and 0, none."""
    metrics = SpeculationMetrics()
    for drafted, accepted in ((4, 2), (4, 4), (2, 0), (0, 0)):
        metrics.record(drafted, accepted)
    assert (metrics.steps, metrics.drafted, metrics.accepted, metrics.emitted) == (4, 10, 6, 10)
    assert metrics.drafted_at == [3, 3, 2, 2]
    assert metrics.accepted_at == [2, 2, 1, 1]
    assert metrics.acceptance_rate == 0.6
    assert metrics.acceptance_by_position == pytest.approx([2 / 3, 2 / 3, 0.5, 0.5])
    assert metrics.tokens_per_step == 2.5


def test_a_draft_that_ran_past_the_end_emits_less_than_was_accepted() -> None:
    metrics = SpeculationMetrics()
    metrics.record(4, 4, num_emitted=2)
    assert (metrics.accepted, metrics.emitted) == (4, 2)


def test_nothing_yet() -> None:
    metrics = SpeculationMetrics()
    assert (metrics.acceptance_rate, metrics.tokens_per_step, metrics.acceptance_by_position) == (0.0, 0.0, [])


@pytest.mark.parametrize("swapped", [False, True])
def test_sums_of_drafts_of_different_lengths(swapped: bool) -> None:
    parts = [SpeculationMetrics(), SpeculationMetrics()]
    parts[swapped].record(3, 1)
    parts[not swapped].record(1, 1)
    parts[0].add(parts[1])
    assert parts[0] == SpeculationMetrics(steps=2, emitted=4, drafted_at=[2, 1, 1], accepted_at=[2])


@pytest.mark.parametrize(("drafted", "accepted"), [(1, 2), (1, -1)])
def test_more_accepted_than_drafted_is_refused(drafted: int, accepted: int) -> None:
    with pytest.raises(ValueError, match=f"expected 0 <= accepted <= drafted, got {accepted} of {drafted}"):
        SpeculationMetrics().record(drafted, accepted)
