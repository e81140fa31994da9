"""`DraftCache`: the keys and values of a drafting network, under the block tables of its target.

A block number means the same tokens in both caches, so the target's block manager serves both: a shared prefix, a
fork or a copy holds here as it holds there, and this cache has no bookkeeping but one number for each request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from servelab.cache import KVStorage
from servelab.model import ModelConfig
from servelab.ops import AttentionBatch, CachedAttention


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens ``start .. stop - 1`` of a sequence, to be computed; those before are in the cache."""

    block_table: Sequence[int]
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


class DraftCache:
    """Storage for networks of `config`, allocated by `attach`."""

    storage: KVStorage

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block over all layers, K and V."""
        config = self.config
        return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * self.dtype.itemsize

    def attach(self, num_blocks: int, block_size: int) -> None:
        config = self.config
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.storage = KVStorage(*shape, dtype=self.dtype, device=self.device)

    def attention(self, spans: Sequence[Span]) -> CachedAttention:
        """Attention for a step that computes these spans, one sequence each, behind each other."""
        block_size = self.storage.block_size
        batch = AttentionBatch(
            query_lengths=[span.num_tokens for span in spans],
            context_lengths=[span.stop for span in spans],
            slot_mapping=[slot for span in spans for slot in slots(span, block_size)],
            block_tables=[span.block_table for span in spans],
            block_size=block_size,
        )
        return CachedAttention(batch, self.storage)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, ``(source, target)`` each."""
        self.storage.copy_blocks(list(pairs))


def slots(span: Span, block_size: int) -> list[int]:
    """Where the keys and values of a span's tokens go."""
    return [
        span.block_table[position // block_size] * block_size + position % block_size
        for position in range(span.start, span.stop)
    ]


def positions(spans: Sequence[Span]) -> list[int]:
    """The positions of all tokens of the spans, which stand behind each other."""
    return [position for span in spans for position in range(span.start, span.stop)]


def last_rows(spans: Sequence[Span]) -> list[int]:
    """The row of each span's last token, where all spans stand behind each other."""
    stop, rows = 0, []
    for span in spans:
        stop += span.num_tokens
        rows.append(stop - 1)
    return rows
