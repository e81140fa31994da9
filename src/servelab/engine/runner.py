"""`Runner`: one forward pass over the rows of a step. It turns block tables into tensors, and decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from servelab.cache import KVCacheManager, KVStorage
from servelab.engine.recorder import CacheManager
from servelab.engine.scheduler import Row
from servelab.model import Model
from servelab.ops import AttentionBatch, CachedAttention


@dataclass(frozen=True, slots=True)
class Forward:
    """What a pass over T tokens gave.

    hidden: [T, E] after the last layer, row after row. logits: [N, V] float32, of those rows that caught up: one of
    each, and one more for each of its draft tokens. num_context_tokens: tokens whose keys and values were read.
    """

    hidden: Tensor
    logits: Tensor
    num_context_tokens: int


class Runner:
    """Holds what stays the same between steps: the model, the tensors of the cache, and its tables.

    attention: the algorithm, as `EngineConfig` names it. weight_bytes: what each pass reads of the weights.
    """

    def __init__(self, model: Model, storage: KVStorage, cache: CacheManager, attention: str = "auto") -> None:
        self.model = model
        self.storage = storage
        self.cache = cache
        self.attention = attention
        self.weight_bytes = model.weight_bytes

    def run(self, rows: Sequence[Row], drafts: Sequence[Sequence[int]] = ()) -> Forward:
        """Compute the rows and the draft tokens behind them: write their keys and values, return states and logits.

        drafts: the draft tokens of each row, perhaps none; they need slots too. Only rows that catch up have a next
        token: a chunk that ends before its prompt does has none. The requests themselves are left as they are.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        query_lengths: list[int] = []
        context_lengths: list[int] = []
        logits_rows: list[int] = []
        for row, draft in zip(rows, drafts or [()] * len(rows), strict=True):
            request, start = row.request, row.request.num_computed_tokens
            stop = start + row.num_tokens
            token_ids += request.token_ids[start:stop]
            token_ids += draft
            stop += len(draft)
            positions += range(start, stop)
            slots += self.cache.slots(request.sample_id, start, stop)
            query_lengths.append(stop - start)
            context_lengths.append(stop)
            if stop >= request.num_tokens:
                logits_rows += range(len(token_ids) - 1 - len(draft), len(token_ids))
        tables, starts = self._places(rows)
        batch = AttentionBatch(query_lengths, context_lengths, slots, tables, starts, self.cache.block_size)
        attention = CachedAttention(batch, self.storage, self.attention)
        hidden = self.model.hidden(token_ids, positions, attention)
        wanted = hidden if len(logits_rows) == len(token_ids) else hidden[logits_rows]
        return Forward(hidden, self.model.project(wanted), sum(context_lengths))

    def _places(self, rows: Sequence[Row]) -> tuple[list[list[int]] | None, list[int] | None]:
        """Where the keys and values of each row lie: its block table, or the first slot of its range."""
        if isinstance(self.cache, KVCacheManager):
            return [self.cache.block_table(row.request.sample_id) for row in rows], None
        return None, [self.cache.start(row.request.sample_id) for row in rows]
