"""`Drafting`: the drafts of one step as they grow, token by token, over all rows that still want one.

A draft token goes through the same processors as one of the target's, with the drafts before it in its history, and
a sampled one is drawn from the distribution that is kept beside it: the rejection is exact only for that very q.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from servelab.model import Model
from servelab.sampling import TokenHistory, draw, probabilities, process_logits, uniform
from servelab.sampling.order import argmax_rows
from servelab.speculative.proposer import Draft, DraftRow


class Drafting:
    """Chooses one token after another for each row that is `active`; a row leaves when its draft is done.

    rows, limits: the rows of the step and how many tokens each may draft. target: its vocabulary and end tokens.
    vocabulary: [Vd] int64, the tokens that can be drafted, where they are not all.
    bars: of each row, the product of its tokens' highest probabilities from which on it drafts no further. What they
    were drawn as plays no part: a draft that is cut by what was drawn would be no draw from its distribution.
    """

    def __init__(
        self,
        rows: Sequence[DraftRow],
        limits: Sequence[int],
        target: Model,
        vocabulary: Tensor | None = None,
        bars: Sequence[float] | None = None,
    ) -> None:
        self.rows = rows
        self.limits = limits
        self.bars = bars if bars is not None and any(bars) else None
        self.sureness = [1.0] * len(rows)
        self.vocab_size = target.config.vocab_size
        self.end_token_ids = target.tokenizer.eos_token_ids
        self.vocabulary = vocabulary
        self.active = [place for place, limit in enumerate(limits) if limit > 0]
        self._tokens: list[list[int]] = [[] for _ in rows]
        self._probs: list[list[Tensor]] = [[] for _ in rows]

    @property
    def active_rows(self) -> list[DraftRow]:
        return [self.rows[place] for place in self.active]

    @property
    def last_tokens(self) -> list[int]:
        """The newest draft token of each active row."""
        return [self._tokens[place][-1] for place in self.active]

    def extend(self, logits: Tensor, best: Sequence[int] = (), peaks: Sequence[float] = ()) -> list[int]:
        """Choose a token for each active row. Returns the places, within `active` as it was, of those that go on.

        logits: [A, Vd] float32 for the active rows. best, peaks: the column of each row's highest logit and its
        probability, where they are known. A row whose highest logit is not finite (its cached keys and values may
        hold anything) drafts no further: the draft is only a guess, and the target needs none.
        """
        processed, vocabulary = self._process(logits)
        if not best or processed is not logits:
            best, peaks = highest_columns(processed)
        logits = processed
        finite = list(map(math.isfinite, peaks))
        if self.bars is not None:
            for place, peak in zip(self.active, peaks, strict=True):
                self.sureness[place] *= peak
        chosen = list(best)
        sampled = [place for place, row in enumerate(self.active_rows) if finite[place] and row.params.temperature > 0]
        if sampled:
            probs, columns = self._draw(logits[sampled], [self.rows[self.active[place]] for place in sampled])
            for place, column, q in zip(sampled, columns, self._spread(probs, vocabulary), strict=True):
                chosen[place] = column
                self._probs[self.active[place]].append(q)
        if vocabulary is not None:
            chosen = vocabulary[chosen].tolist()
        kept = [place for place, token in enumerate(chosen) if finite[place] and self._append(place, token)]
        self.active = [self.active[place] for place in kept]
        return kept

    def drafts(self) -> list[Draft]:
        """What has been drafted, one for each row."""
        return [
            Draft(tokens, torch.stack(probs) if probs else None)
            for tokens, probs in zip(self._tokens, self._probs, strict=True)
        ]

    def _process(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Processed logits, and the vocabulary that their columns stand for (None: all tokens)."""
        rows = self.active_rows
        if not any(row.params.changes_logits for row in rows):
            return logits, self.vocabulary
        if self.vocabulary is not None:  # the processors know tokens by their id
            every = logits.new_full((len(logits), self.vocab_size), -torch.inf)
            logits = every.index_copy_(1, self.vocabulary, logits)
        histories = [self._history(place) for place in self.active]
        return process_logits(logits, [row.params for row in rows], histories, self.end_token_ids), None

    def _history(self, place: int) -> TokenHistory:
        row = self.rows[place]
        if not row.params.needs_history:
            return TokenHistory((), ())
        tokens, end = list(row.token_ids), row.num_prompt_tokens
        return TokenHistory(tokens[:end], tokens[end:] + self._tokens[place])

    def _draw(self, logits: Tensor, rows: Sequence[DraftRow]) -> tuple[Tensor, list[int]]:
        """The distributions [S, Vd] of sampled rows, and the column that each one drew."""
        probs = probabilities(logits, [row.params for row in rows])
        uniforms = torch.cat([uniform(row.generator, 1) for row in rows])
        columns: list[int] = draw(probs, uniforms).tolist()
        return probs, columns

    def _spread(self, probs: Tensor, vocabulary: Tensor | None) -> Tensor:
        """Probabilities over the whole vocabulary: [S, V]. What cannot be drafted has 0."""
        if vocabulary is None:
            return probs
        return probs.new_zeros(len(probs), self.vocab_size).index_copy_(1, vocabulary, probs)

    def _append(self, place: int, token: int) -> bool:
        """Add a token to an active row's draft. Returns whether the row wants another."""
        index = self.active[place]
        self._tokens[index].append(token)
        params = self.rows[index].params
        # Nothing follows a token that ends the output.
        is_end = token in params.stop_token_ids or (token in self.end_token_ids and not params.ignore_eos)
        is_sure = self.bars is None or self.sureness[index] > self.bars[index]
        return not is_end and is_sure and len(self._tokens[index]) < self.limits[index]


def highest_columns(logits: Tensor) -> tuple[list[int], list[float]]:
    """The column of each row's highest logit, and its probability: NaN where that logit is not finite."""
    best = argmax_rows(logits)
    peaks = (logits.gather(1, best[:, None]) - logits.logsumexp(1, True)).exp()
    return best.tolist(), peaks.flatten().tolist()
