"""`Runner`: one forward pass over the rows of a step. It turns block tables into tensors, and decides nothing."""

from collections.abc import Sequence

from torch import Tensor

from servelab.cache import KVCacheManager, KVStorage
from servelab.engine.recorder import CacheManager
from servelab.engine.scheduler import Row
from servelab.model import Model
from servelab.ops import AttentionBatch, CachedAttention


class Runner:
    """Holds what stays the same between steps: the model, the tensors of the cache, and its tables."""

    def __init__(self, model: Model, storage: KVStorage, cache: CacheManager) -> None:
        self.model = model
        self.storage = storage
        self.cache = cache

    def run(self, rows: Sequence[Row]) -> Tensor:
        """Compute the rows: write their keys and values, return logits [N, V] in float32.

        N counts the rows that catch up in this step, in the order of `rows`: only they have a next token. A chunk
        that ends before its prompt does has none. The requests themselves are left as they are.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        logits_rows: list[int] = []
        for request, num_tokens in rows:
            start, stop = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            token_ids += request.tokens(start, stop)
            positions += range(start, stop)
            if stop == request.num_tokens:
                logits_rows.append(len(token_ids) - 1)
        attention = CachedAttention(self.attention_batch(rows), self.storage)
        return self.model.forward(token_ids, positions, attention, logits_rows)

    def attention_batch(self, rows: Sequence[Row]) -> AttentionBatch:
        """Which slots the rows write, and which their attention reads."""
        slots: list[int] = []
        contexts: list[int] = []
        for request, num_tokens in rows:
            start, stop = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            slots += self.cache.slots(request.request_id, start, stop)
            contexts.append(stop)
        ids = [row.request.request_id for row in rows]
        tables, starts = None, None
        if isinstance(self.cache, KVCacheManager):
            tables = [self.cache.block_table(request_id) for request_id in ids]
        else:
            starts = [self.cache.start(request_id) for request_id in ids]
        return AttentionBatch(
            query_lengths=[row.num_tokens for row in rows],
            context_lengths=contexts,
            slot_mapping=slots,
            block_tables=tables,
            starts=starts,
            block_size=self.cache.block_size,
        )
