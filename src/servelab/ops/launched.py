"""Attention over a KV cache by Triton kernels: write the new keys and values, then read all through the block table."""

import torch
from torch import Tensor

from servelab import kernels
from servelab.ops.batch import AttentionBatch, KVView


class LaunchedRead:
    """Two launches a layer, for any mix of prefills, chunks and decodes. What does not depend on the layer goes to the
    device once, when this is made.

    A contiguous range is a table of blocks of one slot.
    """

    def __init__(self, batch: AttentionBatch, storage: KVView) -> None:
        self.storage = storage
        keys = storage.keys(0)
        device = keys.device
        self.is_paged = batch.block_tables is not None
        tables = (
            [list(table) for table in batch.block_tables]
            if batch.block_tables is not None
            else [
                list(range(start, start + context))
                for start, context in zip(batch.starts or (), batch.context_lengths, strict=True)
            ]
        )
        widest = max(map(len, tables))
        padded = torch.tensor([table + [0] * (widest - len(table)) for table in tables], dtype=torch.int32)
        starts = torch.tensor([0, *batch.query_lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self.block_tables = padded.to(device)
        self.query_starts = starts.to(device)
        self.context_lengths = torch.tensor(batch.context_lengths, dtype=torch.int32).to(device)
        self.slots = torch.tensor(batch.slot_mapping, dtype=torch.int64).to(device)
        self.max_query_length = max(batch.query_lengths)
        self.max_context_length = max(batch.context_lengths)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, H, D]; k and v: [T, G, D]. Returns [T, H, D]."""
        storage = self.storage
        keys, values = storage.keys(layer), storage.values(layer)
        key_scales, value_scales = storage.key_scales(layer), storage.value_scales(layer)
        if not self.is_paged:
            keys, values = (x.flatten(0, 1)[:, None] for x in (keys, values))  # [P * block_size, 1, G, D]
            if storage.format == "int8" and key_scales is not None and value_scales is not None:
                key_scales, value_scales = (x.flatten(0, 1)[:, None] for x in (key_scales, value_scales))
        kernels.write_kv_cache(
            k, v, keys, values, self.slots, format=storage.format, key_scales=key_scales, value_scales=value_scales
        )
        out, _ = kernels.paged_attention(
            q, keys, values, self.block_tables, self.context_lengths, self.query_starts,
            format=storage.format, key_scales=key_scales, value_scales=value_scales,
            max_query_length=self.max_query_length, max_context_length=self.max_context_length,
        )  # fmt: skip
        return out
