"""`Proposer`: what the engine asks of whoever drafts tokens. All of speculation happens inside one step:

    scheduler: 1 + max_drafts slots a row -> propose -> the target computes 1 + drafted tokens -> rejection -> observe

A proposer sees no scheduler and decides nothing about the output: whatever it drafts, the target's distribution stands.
Where it keeps keys and values of its own, they lie in its own storage under the target's block tables, so that
paging, prefix caching, forks and copies hold for both at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from servelab.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A decoding request that may be drafted for.

    token_ids: all its tokens, prompt first, n in all; the target has computed all but the last.
    max_drafts: draft tokens at most, 0 or more. block_table: covers n + max_drafts slots, and the slots from n - 1 on
    are the request's alone. generator: the request's own; sampled drafts draw from it, greedy ones do not.
    """

    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    max_drafts: int
    block_table: Sequence[int]
    params: SamplingParams
    generator: torch.Generator


@dataclass(frozen=True, slots=True)
class Draft:
    """What was drafted for one row.

    token_ids: n of them, 0 <= n <= max_drafts, in order. probs: [n, V] the distributions that they were drawn from,
    exactly; None where each was chosen with certainty (greedy, n-gram), which is a distribution on one token.
    """

    token_ids: list[int]
    probs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ObservedRow:
    """Tokens ``start .. stop - 1`` of a request that the target has computed and that stand.

    token_ids: the request's tokens, at least `stop` of them. hidden: [stop - start, E] the target's hidden states of
    these tokens, after its last layer and before the final norm. block_table: covers `stop` slots.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    stop: int
    hidden: Tensor
    block_table: Sequence[int]


class Proposer(Protocol):
    """Drafts tokens for many requests at once. Calls come in this order for a request:

    ``begin (propose? observe)* forget``, and once more from `begin` after a preemption. `propose` comes at most once
    before the `observe` that tells what became of its drafts. A request that computes no token in a step is left out.
    """

    @property
    def k(self) -> int:
        """Draft tokens at most, for one request in one step."""
        ...

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of its own for each block of the target's cache; 0 where it keeps none."""
        ...

    def attach(self, num_blocks: int, block_size: int) -> None:
        """Allocate its own storage for block tables of such a pool. Called once, before anything below."""
        ...

    def begin(self, request_id: str, num_cached: int) -> None:
        """The request starts (again) with `num_cached` tokens from the prefix cache, whose blocks hold its KV too."""
        ...

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """One draft a row, in their order: at most `max_drafts` and `k` tokens each, perhaps none."""
        ...

    def observe(self, rows: Sequence[ObservedRow]) -> None:
        """Learn what the target computed in this step: prompt chunks, decoded tokens, accepted drafts."""
        ...

    def num_computed(self, request_id: str) -> int:
        """Leading tokens whose own KV is written and valid: only blocks within them may be found by others."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """The target's blocks were copied, ``(source, target)`` each: copy its own with them."""
        ...

    def fork(self, parent_id: str, child_id: str) -> None:
        """The child starts with the parent's block table and all that is known of the parent."""
        ...

    def forget(self, request_id: str) -> None:
        """The request is over or preempted. Unknown ids are left alone."""
        ...
