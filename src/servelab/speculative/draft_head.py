"""The draft head drafts: one layer over the target's own last hidden states (`head.py`; EAGLE, Li et al. 2024).

first step:  (h[c-1], token c) ... (h[n-2], token n-1)  ->  h'[n-1]  ->  draft n      true states, in one go
then:        (h'[n-1], draft n)  ->  h'[n]  ->  draft n+1                             its own states
afterwards:  the target has computed h[n-1], h[n], ...: what was written with h' is written again with h
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from servelab.model import Model
from servelab.ops import Arena, HeadResult, Linear
from servelab.speculative.adaptive import AdaptiveLengths
from servelab.speculative.config import DraftHead
from servelab.speculative.draft_cache import DraftCache, Span, last_rows, positions
from servelab.speculative.drafting import Drafting, highest_columns
from servelab.speculative.fused_head import FusedHead
from servelab.speculative.head import SHIPPED, load_head, vocabulary_rows
from servelab.speculative.proposer import Draft, DraftRow, ObservedRow

# What it takes to start the head's own pass, beside reading its weights: as a share of a decode step of the target.
# A draft token took 1.3 ms where SmolLM2's step took 12.7, and its weights are 4.9 % of the target's (2 cores of an AMD
# EPYC, November 2026).
START_COST = 0.03


@dataclass(slots=True)
class Progress:
    """Of one request: its leading tokens that the head has computed from true hidden states, and the states since.

    hidden: [n, E] the target's states of the tokens ``computed - 1 .. computed + n - 2``: with each of them the
    token behind it can be computed. Zeros stand for a state that nobody has: before the first token, and where the
    prefix cache spared the target the computation.
    """

    computed: int
    hidden: Tensor

    @property
    def end(self) -> int:
        """Tokens that the target has computed: the next states begin here."""
        return self.computed + len(self.hidden) - 1


class DraftHeadProposer:
    """Runs the head over all rows at once. States wait until the next draft, unless they are many, as of a prompt."""

    cos: Tensor  # [longest context, 1, D]: the rotation of every position, and `sin` with it
    sin: Tensor

    def __init__(self, config: DraftHead, target: Model, token_cost: float) -> None:
        self.config = config
        self.target = target
        head = load_head(SHIPPED if config.path is None else Path(config.path), target)
        self.network = head.network
        self.vocabulary = head.vocabulary
        self.rows = vocabulary_rows(target, head.vocabulary)
        self.rows.pack(Arena(2 * self.rows.weight.numel()))
        self.fused = FusedHead(self.network, self.rows)
        products = [self.rows, *(module for module in self.network.modules() if isinstance(module, Linear))]
        weights = sum(product.in_features * product.out_features for product in products)
        draft_cost = START_COST + weights / target.config.num_parameters
        self.lengths = AdaptiveLengths(config.k, config.adaptive, draft_cost, token_cost)
        self.cache = DraftCache(self.network.config, target.dtype, target.device)
        self._progress: dict[str, Progress] = {}

    @property
    def k(self) -> int:
        return self.config.k

    def bytes_per_block(self, block_size: int) -> int:
        return self.cache.bytes_per_block(block_size)

    def attach(self, num_blocks: int, block_size: int) -> None:
        self.cache.attach(num_blocks, block_size)
        longest = min(num_blocks * block_size, self.target.config.max_context)
        self.cos, self.sin = self.network.rotary_tables(torch.arange(longest, device=self.target.device))

    def begin(self, request_id: str, num_cached: int) -> None:
        unknown = torch.zeros(1, self.target.config.hidden_size, dtype=self.target.dtype, device=self.target.device)
        self._progress[request_id] = Progress(num_cached, unknown)

    @torch.no_grad()
    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        limits, bars = self.lengths.growth(rows)
        drafting = Drafting(rows, limits, self.target, self.vocabulary, bars)
        if drafting.active:
            self._draft(drafting)
        drafts = drafting.drafts()
        self.lengths.proposed(rows, drafts)
        return drafts

    def _draft(self, drafting: Drafting) -> None:
        """Compute what is new with true states and guess the first token; then one token a step."""
        rows = drafting.active_rows
        guess = self._catch_up(rows, [len(row.token_ids) for row in rows])
        kept = drafting.extend(guess.logits, guess.best, guess.peaks)
        ahead = 0
        while drafting.active:
            hidden = guess.hidden if len(kept) == len(guess.hidden) else guess.hidden[kept]
            spans = [
                Span(row.block_table, len(row.token_ids) + ahead, len(row.token_ids) + ahead + 1)
                for row in drafting.active_rows
            ]
            guess = self._guess(hidden, drafting.last_tokens, spans)
            kept = drafting.extend(guess.logits, guess.best, guess.peaks)
            ahead += 1

    def _catch_up(self, rows: Sequence[DraftRow | ObservedRow], stops: Sequence[int]) -> HeadResult:
        """Compute each row's tokens up to `stop` from true states. Returns the guess after the last of each."""
        states = [self._progress[row.request_id] for row in rows]
        spans = [
            Span(row.block_table, state.computed, stop) for row, state, stop in zip(rows, states, stops, strict=True)
        ]
        tokens = [
            token for row, span in zip(rows, spans, strict=True) for token in row.token_ids[span.start : span.stop]
        ]
        hidden = [state.hidden[: span.num_tokens] for state, span in zip(states, spans, strict=True)]
        guess = self._guess(hidden[0] if len(hidden) == 1 else torch.cat(hidden), tokens, spans)
        for state, span in zip(states, spans, strict=True):
            state.computed, state.hidden = span.stop, state.hidden[span.num_tokens :].clone()
        return guess

    def _guess(self, hidden: Tensor, token_ids: Sequence[int], spans: Sequence[Span]) -> HeadResult:
        """What follows the last token of each span. hidden: [T, E] the state before each of the tokens."""
        places, last, attention = positions(spans), last_rows(spans), self.cache.attention(spans)
        embedding = self.target.network.embedding
        fused = self.fused.run(hidden, embedding, token_ids, places, last, self.cos, self.sin, attention)
        if fused is not None:
            return fused
        ids = torch.tensor([token_ids, places], device=self.target.device)
        cos, sin = self.cos.index_select(0, ids[1]), self.sin.index_select(0, ids[1])
        guessed = self.network.guess(hidden, embedding(ids[0]), cos, sin, attention)[last]
        logits = self.network.logits(guessed, self.rows).float()
        return HeadResult(guessed, logits, *highest_columns(logits))

    @torch.no_grad()
    def observe(self, rows: Sequence[ObservedRow]) -> None:
        self.lengths.observed(rows)
        behind: list[ObservedRow] = []
        for row in rows:
            state = self._progress[row.request_id]
            if row.start != state.end:
                raise ValueError(
                    f"expected the states of request {row.request_id!r} from token {state.end} on, got {row.start}"
                )
            state.hidden = torch.cat((state.hidden, row.hidden))  # a copy: the target may use its tensor again
            if row.stop - state.computed > self.k:
                behind.append(row)
        if behind:
            # The token at `stop` may not be known yet: the last state waits for it.
            self._catch_up(behind, [row.stop for row in behind])

    def num_computed(self, request_id: str) -> int:
        return self._progress[request_id].computed

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.cache.copy_blocks(pairs)

    def fork(self, parent_id: str, child_id: str) -> None:
        parent = self._progress[parent_id]
        self._progress[child_id] = Progress(parent.computed, parent.hidden)
        self.lengths.fork(parent_id, child_id)

    def forget(self, request_id: str) -> None:
        self._progress.pop(request_id, None)
        self.lengths.forget(request_id)
