"""A smaller model drafts (Leviathan et al. 2023; Chen et al. 2023): k of its cheap steps before one of the target's.

target has computed n - 1 tokens; token n - 1 is new.  The draft computes it, guesses n, computes that, guesses ...
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from servelab.model import Model
from servelab.speculative.adaptive import AdaptiveLengths
from servelab.speculative.config import DraftModel
from servelab.speculative.draft_cache import DraftCache, Span, last_rows, positions
from servelab.speculative.drafting import Drafting
from servelab.speculative.proposer import Draft, DraftRow, ObservedRow


@dataclass(slots=True)
class Progress:
    """Of one request: its leading tokens that the draft model has computed, and draft tokens that it has beyond.

    The ones beyond count as soon as they are accepted: they then are the request's own tokens.
    """

    computed: int
    beyond: int = 0


class DraftModelProposer:
    """Runs the draft model over all rows at once, and keeps it level with the target.

    It follows the target by at most k tokens, which the next draft computes with its first step; what is more, as of
    a prompt, is computed at once.
    """

    def __init__(self, config: DraftModel, target: Model, token_cost: float) -> None:
        check_draft_model(config.model, target)
        self.config = config
        self.model = config.model
        self.target = target
        draft_cost = self.model.config.num_parameters / target.config.num_parameters
        self.lengths = AdaptiveLengths(config.k, config.adaptive, draft_cost, token_cost)
        self.cache = DraftCache(self.model.config, self.model.dtype, self.model.device)
        self._progress: dict[str, Progress] = {}

    @property
    def k(self) -> int:
        return self.config.k

    def bytes_per_block(self, block_size: int) -> int:
        return self.cache.bytes_per_block(block_size)

    def attach(self, num_blocks: int, block_size: int) -> None:
        self.cache.attach(num_blocks, block_size)

    def begin(self, request_id: str, num_cached: int) -> None:
        self._progress[request_id] = Progress(num_cached)

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        limits, bars = self.lengths.growth(rows)
        limits = [min(limit, self._room(row)) for limit, row in zip(limits, rows, strict=True)]
        drafting = Drafting(rows, limits, self.target, bars=bars)
        if drafting.active:
            self._draft(drafting)
        drafts = drafting.drafts()
        for row, draft in zip(rows, drafts, strict=True):
            # The last draft token was guessed, and not computed.
            self._progress[row.request_id].beyond = max(0, len(draft.token_ids) - 1)
        self.lengths.proposed(rows, drafts)
        return drafts

    def _draft(self, drafting: Drafting) -> None:
        """Compute what the rows are behind by and guess the first token; then one token a step."""
        rows = drafting.active_rows
        spans = [Span(row.block_table, self._progress[row.request_id].computed, len(row.token_ids)) for row in rows]
        tokens = [token for row, span in zip(rows, spans, strict=True) for token in row.token_ids[span.start :]]
        drafting.extend(self._logits(tokens, spans))
        for row in rows:
            self._progress[row.request_id].computed = len(row.token_ids)
        ahead = 0
        while drafting.active:
            spans = [
                Span(row.block_table, len(row.token_ids) + ahead, len(row.token_ids) + ahead + 1)
                for row in drafting.active_rows
            ]
            drafting.extend(self._logits(drafting.last_tokens, spans))
            ahead += 1

    def _logits(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """Logits [spans, V] after the last token of each span."""
        hidden = self._hidden(tokens, spans)
        if len(tokens) == len(spans):
            return self.model.project(hidden)
        return self.model.project(hidden[last_rows(spans)])

    def _hidden(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        return self.model.hidden(tokens, positions(spans), self.cache.attention(spans))

    def observe(self, rows: Sequence[ObservedRow]) -> None:
        self.lengths.observed(rows)
        behind: list[ObservedRow] = []
        for row in rows:
            progress = self._progress[row.request_id]
            progress.computed = min(progress.computed + progress.beyond, row.stop)
            progress.beyond = 0
            if self._end(row) - progress.computed > self.k:
                behind.append(row)
        if behind:
            spans = [Span(row.block_table, self._progress[row.request_id].computed, self._end(row)) for row in behind]
            tokens = [
                token
                for row, span in zip(behind, spans, strict=True)
                for token in row.token_ids[span.start : span.stop]
            ]
            self._hidden(tokens, spans)
            for row, span in zip(behind, spans, strict=True):
                self._progress[row.request_id].computed = span.stop

    def num_computed(self, request_id: str) -> int:
        return self._progress[request_id].computed

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.cache.copy_blocks(pairs)

    def fork(self, parent_id: str, child_id: str) -> None:
        self._progress[child_id] = Progress(self._progress[parent_id].computed)
        self.lengths.fork(parent_id, child_id)

    def forget(self, request_id: str) -> None:
        self._progress.pop(request_id, None)
        self.lengths.forget(request_id)

    def _end(self, row: ObservedRow) -> int:
        """Tokens of the row that the draft model can compute: its context may be the shorter one."""
        return min(row.stop, self.model.config.max_context)

    def _room(self, row: DraftRow) -> int:
        """Draft tokens that the draft model's own context allows: it computes all of them but the last."""
        return max(0, self.model.config.max_context - len(row.token_ids) + 1)


def check_draft_model(model: Model, target: Model) -> None:
    """Raise ValueError unless both models speak the same tokens on the same device."""
    if model.config.vocab_size != target.config.vocab_size:
        raise ValueError(
            f"expected a draft model with the vocabulary of {target.name} ({target.config.vocab_size} tokens), "
            f"got {model.name} with {model.config.vocab_size}"
        )
    if model.device != target.device:
        raise ValueError(f"expected the draft model on {target.device}, got it on {model.device}")
