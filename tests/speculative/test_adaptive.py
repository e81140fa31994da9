"""k follows what is accepted and what drafting costs."""

import math
import random
from itertools import pairwise

import pytest
import torch

from servelab.sampling import SamplingParams
from servelab.speculative import AdaptiveLength, Draft, DraftRow, ObservedRow
from servelab.speculative.adaptive import FIRST_WAIT, LONGEST_WAIT, AdaptiveLengths


def live(length: AdaptiveLength, acceptance: float, steps: int, seed: int = 0) -> list[int]:
    """Let drafts be accepted with this chance; returns the k of each step."""
    draw, chosen = random.Random(seed), []
    for _ in range(steps):
        k = length.choose()
        accepted = 0
        while accepted < k and draw.random() < acceptance:
            accepted += 1
        length.record(k, accepted)
        chosen.append(k)
    return chosen


def test_a_new_request_is_drafted_for() -> None:
    assert AdaptiveLength(4, draft_cost=0.05, token_cost=0.05).choose() > 0


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8])
def test_the_measured_acceptance_nears_the_true_one(acceptance: float) -> None:
    means = []
    for seed in range(30):
        length = AdaptiveLength(4, draft_cost=0.0, token_cost=0.0)
        live(length, acceptance, 60, seed)
        means.append(length.acceptance)
    assert sum(means) / 30 == pytest.approx(acceptance, abs=0.08)


def test_free_drafts_are_as_long_as_they_may_be() -> None:
    assert set(live(AdaptiveLength(5, draft_cost=0.0, token_cost=0.0), 0.5, 20)) == {5}


def test_what_is_always_accepted_grows_longer_than_what_often_is() -> None:
    good, fair = (AdaptiveLength(8, draft_cost=0.1, token_cost=0.05) for _ in range(2))
    good, fair = live(good, 1.0, 60), live(fair, 0.6, 60)
    assert good[-1] == 8
    assert 0 < sum(fair[20:]) / 40 < 5


def test_what_is_never_accepted_is_not_drafted_but_for_a_try_now_and_then() -> None:
    chosen = live(AdaptiveLength(4, draft_cost=0.1, token_cost=0.05), 0.0, 300)
    tries = [step for step, k in enumerate(chosen) if k][1:]
    while tries[1] - tries[0] == 1:  # the first steps, until it has learnt
        tries = tries[1:]
    waits = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert waits[0] in (FIRST_WAIT, 2 * FIRST_WAIT)
    assert max(waits) == LONGEST_WAIT
    assert sum(k > 0 for k in chosen) < 20


def test_it_comes_back_when_the_text_changes() -> None:
    length = AdaptiveLength(4, draft_cost=0.05, token_cost=0.05)
    live(length, 0.0, 100)
    assert sum(live(length, 1.0, 200)[-20:]) == 80


def test_a_full_batch_is_drafted_less_for() -> None:
    length = AdaptiveLength(4, draft_cost=0.05, token_cost=0.06)
    length.tested, length.accepted = 10.0, 5.0
    assert length.choose(1) > length.choose(8) >= length.choose(64)
    assert length.choose(1000) == 0


def test_a_dear_draft_model_is_not_used() -> None:
    assert sum(live(AdaptiveLength(4, draft_cost=0.79, token_cost=0.05), 0.3, 200)) < 20


def test_tokens_behind_the_first_rejected_one_do_not_count() -> None:
    length = AdaptiveLength(4, draft_cost=0.0, token_cost=0.0)
    length.tested, length.accepted = 0.0, 0.0
    length.record(4, 1)
    assert (length.tested, length.accepted) == (2, 1)
    length.record(0, 0)
    assert (length.tested, length.accepted) == (2, 1)


def row(request_id: str, num_tokens: int, max_drafts: int = 9) -> DraftRow:
    return DraftRow(request_id, [1] * num_tokens, 1, max_drafts, [], SamplingParams(), torch.Generator())


def observed(request_id: str, start: int, stop: int) -> ObservedRow:
    return ObservedRow(request_id, [1] * stop, start, stop, torch.zeros(stop - start, 2), [])


def test_without_adaptation_every_row_gets_k_or_what_it_may() -> None:
    lengths = AdaptiveLengths(4, False, 0.1, 0.1)
    rows = [row("a", 5), row("b", 5, max_drafts=2), row("c", 5, max_drafts=0)]
    for _ in range(30):
        assert lengths.limits(rows) == [4, 2, 0]
        lengths.proposed(rows, [Draft([7] * 4), Draft([7] * 2), Draft([])])
        lengths.observed([observed("a", 4, 5), observed("b", 4, 5), observed("c", 4, 5)])


def test_each_request_has_its_own_k() -> None:
    lengths = AdaptiveLengths(4, True, 0.1, 0.05)
    for _ in range(30):
        rows = [row("good", 10), row("bad", 10), row("short", 10, max_drafts=1)]
        limits = lengths.limits(rows)
        assert limits[2] <= 1
        lengths.proposed(rows, [Draft([7] * limit) for limit in limits])
        lengths.observed([observed("good", 9, 10 + limits[0]), observed("bad", 9, 10), observed("unknown", 0, 3)])
    assert lengths.limits([row("good", 10), row("bad", 10)]) == [4, 0]


def test_the_bar_rises_with_the_price_and_falls_with_what_is_accepted() -> None:
    length, dear = (
        AdaptiveLength(4, draft_cost=0.05, token_cost=0.05),
        AdaptiveLength(4, draft_cost=0.2, token_cost=0.05),
    )
    fresh = length.bar()
    assert 0 < fresh < dear.bar() < 1
    assert length.bar(1) < length.bar(8) < length.bar(64)
    for _ in range(30):
        length.record(2, 0)
    assert length.bar() > fresh
    length.accepted = 0.0
    assert length.bar() == math.inf


def test_a_draft_with_probabilities_may_grow_to_k_where_drafting_pays_at_all() -> None:
    rows = [row("new", 10), row("short", 10, max_drafts=2), row("bad", 10)]
    assert AdaptiveLengths(4, False, 0.1, 0.05).growth(rows) == ([4, 2, 4], [0.0, 0.0, 0.0])
    lengths = AdaptiveLengths(4, True, 0.1, 0.05)
    for _ in range(30):
        lengths.proposed(rows[2:], [Draft([7] * lengths.limits(rows[2:])[0])])
        lengths.observed([observed("bad", 9, 10)])
    limits, bars = lengths.growth(rows)
    assert limits[:2] == [4, 2]
    assert limits[2] in (0, 1)  # or a try
    assert bars[2] > bars[0] == bars[1] > 0
    tries = [lengths.growth(rows[2:])[0][0] for _ in range(LONGEST_WAIT + 1)]
    assert set(tries) == {0, 1}


def test_a_row_gets_less_the_more_stand_beside_it() -> None:
    lengths = AdaptiveLengths(4, True, 0.05, 0.06)
    assert lengths.limits([row("a", 10)])[0] > lengths.limits([row(str(place), 10) for place in range(64)])[0]


def test_a_child_starts_with_what_its_parent_learnt_and_forgetting_forgets() -> None:
    lengths = AdaptiveLengths(4, True, 0.1, 0.05)
    lengths.fork("nobody", "child of nobody")
    for _ in range(30):
        rows = [row("parent", 10)]
        (limit,) = lengths.limits(rows)
        lengths.proposed(rows, [Draft([7] * limit)])
        lengths.observed([observed("parent", 9, 10)])
    lengths.fork("parent", "child")
    assert lengths.limits([row("child", 10)]) == [0]
    lengths.forget("child")
    assert lengths.limits([row("child", 10)])[0] > 0
