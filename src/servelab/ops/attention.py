"""Causal attention with grouped query heads: over packed sequences, or over what a KV cache holds.

    out[t, h] = sum_s softmax_s(q[t, h] . k[s, g] / sqrt(D)) v[s, g]        g = h // (H / G),  s <= position of t

An attention object is made once a step and called by every layer, so all that does not depend on the layer
(indices, masks, who is computed together) is prepared when it is made. K and V are never repeated for the
H / G query heads that share them: the heads become rows, or a stride of 0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from servelab import kernels
from servelab.ops import backend
from servelab.ops.batch import AttentionBatch, KVView
from servelab.ops.launched import LaunchedRead
from servelab.ops.read import attend_sequence, plan_reads
from servelab.ops.stored import stored_layer

if TYPE_CHECKING:
    from servelab.ops.compiled.plan import PagedRead

ALGORITHMS = ("auto", "naive", "flash")


class Attention(Protocol):
    """What the network calls in each layer."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, H, D]; k and v of the same tokens: [T, G, D]. Returns [T, H, D]."""
        ...


class PackedCausalAttention:
    """No cache: sequences packed behind each other, every token sees its own sequence up to itself.

    sequence_lengths: tokens of each sequence, at least 1; they sum to T.
    """

    def __init__(self, sequence_lengths: Sequence[int]) -> None:
        if not sequence_lengths or min(sequence_lengths) < 1:
            raise ValueError(f"expected sequence lengths of at least 1, got {list(sequence_lengths)}")
        self.sequence_lengths = list(sequence_lengths)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`. Raises ValueError where the shapes do not fit."""
        check_heads(q, k, v)
        if q.shape[0] != sum(self.sequence_lengths):
            raise ValueError(f"expected {sum(self.sequence_lengths)} packed tokens, got {q.shape[0]}")
        if backend.launches(q):
            starts = torch.tensor([0, *self.sequence_lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            out, _ = kernels.flash_attention(
                q, k, v, query_starts=starts.to(q.device), max_query_length=max(self.sequence_lengths)
            )
            return out
        out = torch.empty_like(q)
        stop = 0
        for length in self.sequence_lengths:
            start, stop = stop, stop + length
            out[start:stop] = attend_sequence(q[start:stop], k[start:stop], v[start:stop], mask=None)
        return out


class CachedAttention:
    """Over a KV cache: write the new keys and values to their slots, then attend to all that is stored.

    Any mix of prefills, chunks with earlier context, and decodes. What lies in a slot that no sequence of the
    batch uses, be it NaN, never reaches the result. A contiguous range is read as a view; blocks are gathered.
    What is read is what is stored, rounded to the cache's format, also of the tokens that were just written.

    algorithm: "naive" computes each sequence's whole matrix of scores; "flash" goes through it tile by tile with
    an online softmax (Dao et al. 2022) and never holds it; "auto" is the fastest, which is "flash".

    Raises ValueError when the storage's block size is not the batch's, a slot lies outside the storage, or the
    algorithm is none of these.
    """

    def __init__(self, batch: AttentionBatch, storage: KVView, algorithm: str = "auto") -> None:
        if algorithm not in ALGORITHMS:
            raise ValueError(f"expected algorithm in {ALGORITHMS}, got {algorithm!r}")
        keys = storage.keys(0)
        if keys.shape[1] != batch.block_size:
            raise ValueError(f"expected storage with blocks of {batch.block_size} slots, got {keys.shape[1]}")
        check_slots(batch, num_slots=keys.shape[0] * keys.shape[1])
        self.storage = storage
        self.num_tokens = batch.num_tokens
        self.kv_shape = keys.shape[2:]
        self.launched = LaunchedRead(batch, storage) if algorithm != "naive" and backend.launches(keys) else None
        self.compiled = compiled_read(batch, storage) if algorithm != "naive" and self.launched is None else None
        if self.launched is not None or self.compiled is not None:
            return
        slots = torch.tensor(batch.slot_mapping, dtype=torch.int64, device=keys.device)
        skipped = min(batch.slot_mapping) < 0
        self.written_rows = (slots >= 0).nonzero().flatten() if skipped else None
        self.written_slots = slots[slots >= 0] if skipped else slots
        self.reads = plan_reads(batch, keys.device, naive=algorithm == "naive")

    def fits(self, x: Tensor) -> bool:
        """Whether whole layers can be run on x [T, E] at once (`servelab.ops.run_layers`)."""
        return self.compiled is not None and x.dtype == torch.float32 and x.is_cpu and len(x) == self.num_tokens

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`. Raises ValueError where the shapes do not fit."""
        check_heads(q, k, v)
        if q.shape[0] != self.num_tokens or k.shape[1:] != self.kv_shape:
            raise ValueError(
                f"expected the {self.num_tokens} query tokens of the batch and [G, D] = {list(self.kv_shape)} of the "
                f"cache, got {q.shape[0]} and {list(k.shape[1:])}"
            )
        if self.launched is not None:
            return self.launched(layer, q, k, v)
        if self.compiled is not None:  # the same in one pass, with nothing gathered
            return self.compiled(layer, q, k, v)
        stored = stored_layer(self.storage, layer)
        if self.written_rows is not None:
            k, v = k.index_select(0, self.written_rows), v.index_select(0, self.written_rows)
        stored.write(self.written_slots, k, v)
        if len(self.reads) == 1:
            return self.reads[0](q, stored)
        out = torch.empty_like(q)
        for read in self.reads:
            out[read.rows] = read(q[read.rows], stored)
        return out


def compiled_read(batch: AttentionBatch, storage: KVView) -> "PagedRead | None":
    """The compiled way to write and read the cache, where this machine and this cache allow it."""
    if not storage.keys(0).is_cpu or not backend.use_compiled():
        return None
    from servelab.ops.compiled.plan import PagedRead, can_read

    return PagedRead(batch, storage) if can_read(storage) else None


def check_slots(batch: AttentionBatch, num_slots: int) -> None:
    """Raise ValueError when the batch names a slot that the storage does not have."""
    last = max(batch.slot_mapping)
    if batch.starts is not None:
        first = min(batch.starts)
        ends = [start + context for start, context in zip(batch.starts, batch.context_lengths, strict=True)]
        last = max(last, max(ends) - 1)
    else:
        tables = [table for table in batch.block_tables or () if table]
        first = min(min(table) for table in tables) * batch.block_size
        last = max(last, max(max(table) for table in tables) * batch.block_size + batch.block_size - 1)
    if first < 0 or last >= num_slots:
        raise ValueError(f"expected slots in 0..{num_slots - 1}, got {first if first < 0 else last}")


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError unless q is [T, H, D], k and v are [T, G, D] and H is a multiple of G."""
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape or q.shape[::2] != k.shape[::2]:
        raise ValueError(
            f"expected q [T, H, D] and k, v [T, G, D], got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"expected query heads divisible by KV heads, got {q.shape[1]} query heads and {k.shape[1]} KV heads"
        )
