"""How many tokens to draft: as many as pay, by what was accepted so far.

A draft token costs its drafting, and a place in the target's step; it wins only if it and all before it are
accepted. `servelab.costs` weighs the two; here the acceptance rate is measured, for each request by itself. A draft
with probabilities says more: it grows while they promise that its next token pays (as in EAGLE-2, Li et al. 2024).
Nothing is timed, so the same run drafts the same again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servelab.costs import speculation_speedup, verification_cost
from servelab.speculative.proposer import Draft, DraftRow, ObservedRow

# A new request is taken to be worth drafting for, and that belief weighs as much as a few measured tokens.
FIRST_TESTED, FIRST_ACCEPTED = 3.0, 2.4
# What a step showed counts for this much less with every step after it.
DECAY = 0.9
# Steps without drafts until the next try, doubled each time it fails.
FIRST_WAIT, LONGEST_WAIT = 8, 64
# What was known before counts for this much less at such a try: the text may have changed.
PROBE_DECAY = 0.5


class AdaptiveLength:
    """k of one request, in 0..k_max.

    draft_cost: time of one draft token as a share of a plain decode step. token_cost: what one more token adds to a
    step of one token, as a share of it.
    """

    def __init__(self, k_max: int, draft_cost: float, token_cost: float) -> None:
        self.k_max = k_max
        self.draft_cost = draft_cost
        self.token_cost = token_cost
        self.tested = FIRST_TESTED
        self.accepted = FIRST_ACCEPTED
        self.idle = 0
        self.wait = FIRST_WAIT

    @property
    def acceptance(self) -> float:
        """Measured chance that a draft token is accepted when all before it were: an exponential mean."""
        return self.accepted / self.tested

    def choose(self, batch_size: int = 1) -> int:
        """Draft tokens for the next step of a batch of this size: those with the highest expected tokens per second."""
        verify_costs = [verification_cost(self.token_cost, batch_size, k) for k in range(self.k_max + 1)]
        speedups = [
            speculation_speedup(self.acceptance, k, self.draft_cost, verify_cost)
            for k, verify_cost in enumerate(verify_costs)
        ]
        k = speedups.index(max(speedups))
        if k:
            self.idle = 0
            return k
        self.idle += 1
        return 1 if self.idle > self.wait else 0

    @property
    def is_trying(self) -> bool:
        """Whether the draft just chosen is no more than a try whether it would pay again."""
        return self.idle > self.wait

    def bar(self, batch_size: int = 1) -> float:
        """How sure a draft must be of all its tokens so far, so that one more pays.

        The next is accepted with the measured chance if they all are; it costs its drafting and its place in the
        target's step, in which time a step brings tokens anyway.
        """
        costs = [verification_cost(self.token_cost, batch_size, k) for k in (1, 2)]
        rate = max(1.0, speculation_speedup(self.acceptance, 1, self.draft_cost, costs[0]))
        price = (self.draft_cost + costs[1] - costs[0]) * rate
        return price / self.acceptance if self.acceptance > 0 else math.inf

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Learn the outcome of a draft. Tokens behind the first rejected one were not tested, and do not count."""
        if num_drafted == 0:
            return
        decay = DECAY
        if self.idle > self.wait:
            decay = PROBE_DECAY
            self.idle = 0
            self.wait = FIRST_WAIT if num_accepted else min(2 * self.wait, LONGEST_WAIT)
        self.tested = decay * self.tested + min(num_accepted + 1, num_drafted)
        self.accepted = decay * self.accepted + num_accepted


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A draft whose outcome is not known yet: it was made when the request had `num_tokens` tokens."""

    num_tokens: int
    num_drafted: int


class AdaptiveLengths:
    """k of every request. Without `adaptive` it is `k` for all, and nothing is measured."""

    def __init__(self, k: int, adaptive: bool, draft_cost: float, token_cost: float) -> None:
        self.k = k
        self.adaptive = adaptive
        self.draft_cost = draft_cost
        self.token_cost = token_cost
        self._lengths: dict[str, AdaptiveLength] = {}
        self._outstanding: dict[str, Outstanding] = {}

    def limits(self, rows: Sequence[DraftRow]) -> list[int]:
        """Draft tokens at most, for each row of a batch."""
        if not self.adaptive:
            return [min(row.max_drafts, self.k) for row in rows]
        return [min(row.max_drafts, self._length(row.request_id).choose(len(rows))) for row in rows]

    def growth(self, rows: Sequence[DraftRow]) -> tuple[list[int], list[float]]:
        """For drafts with probabilities: tokens at most for each row, and how sure it must be to grow (`Drafting`)."""
        limits = self.limits(rows)
        if not self.adaptive:
            return limits, [0.0] * len(rows)
        bars = []
        for place, row in enumerate(rows):
            length = self._length(row.request_id)
            if limits[place] and not length.is_trying:
                limits[place] = min(row.max_drafts, self.k)
            bars.append(length.bar(len(rows)))
        return limits, bars

    def proposed(self, rows: Sequence[DraftRow], drafts: Sequence[Draft]) -> None:
        """Remember what was drafted, until `observed` tells what became of it."""
        if self.adaptive:
            for row, draft in zip(rows, drafts, strict=True):
                self._outstanding[row.request_id] = Outstanding(len(row.token_ids), len(draft.token_ids))

    def observed(self, rows: Sequence[ObservedRow]) -> None:
        if self.adaptive:
            for row in rows:
                outstanding = self._outstanding.pop(row.request_id, None)
                if outstanding is not None:
                    self._length(row.request_id).record(outstanding.num_drafted, row.stop - outstanding.num_tokens)

    def fork(self, parent_id: str, child_id: str) -> None:
        """The child is the parent's text so far, and starts with what was measured there."""
        if parent_id in self._lengths:
            parent, child = self._lengths[parent_id], self._length(child_id)
            child.tested, child.accepted = parent.tested, parent.accepted

    def forget(self, request_id: str) -> None:
        self._lengths.pop(request_id, None)
        self._outstanding.pop(request_id, None)

    def _length(self, request_id: str) -> AdaptiveLength:
        if request_id not in self._lengths:
            self._lengths[request_id] = AdaptiveLength(self.k, self.draft_cost, self.token_cost)
        return self._lengths[request_id]
