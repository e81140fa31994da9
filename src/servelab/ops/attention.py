"""Causal attention with grouped query heads: over packed sequences, or over what a KV cache holds.

    out[t, h] = sum_s softmax_s(q[t, h] . k[s, g] / sqrt(D)) v[s, g]        g = h // (H / G),  s <= position of t

An attention object is made once a step and called by every layer, so all that does not depend on the layer
(indices, masks, who is computed together) is prepared when it is made. K and V are never repeated for the
H / G query heads that share them: the heads become rows, or a stride of 0.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from servelab.ops.batch import AttentionBatch, KVView

# Decodes are computed together while padding to the longest costs less than this share of it, or this many tokens.
PADDING_SHARE = 0.25
PADDING_TOKENS = 64


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

    Raises ValueError when the storage's block size is not the batch's, or a slot lies outside the storage.
    """

    def __init__(self, batch: AttentionBatch, storage: KVView) -> None:
        keys = storage.keys(0)
        if keys.shape[1] != batch.block_size:
            raise ValueError(f"expected storage with blocks of {batch.block_size} slots, got {keys.shape[1]}")
        check_slots(batch, num_slots=keys.shape[0] * keys.shape[1])
        self.storage = storage
        self.num_tokens = batch.num_tokens
        slots = torch.tensor(batch.slot_mapping, dtype=torch.int64, device=keys.device)
        skipped = min(batch.slot_mapping) < 0
        self.written_rows = (slots >= 0).nonzero().flatten() if skipped else None
        self.written_slots = slots[slots >= 0] if skipped else slots
        self.reads = plan_reads(batch, keys.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`. Raises ValueError where the shapes do not fit."""
        check_heads(q, k, v)
        if q.shape[0] != self.num_tokens:
            raise ValueError(f"expected the {self.num_tokens} query tokens of the batch, got {q.shape[0]}")
        keys = self.storage.keys(layer).flatten(0, 1)  # [P * block_size, G, D], a view
        values = self.storage.values(layer).flatten(0, 1)
        if self.written_rows is not None:
            k, v = k.index_select(0, self.written_rows), v.index_select(0, self.written_rows)
        keys.index_copy_(0, self.written_slots, k.to(keys.dtype))
        values.index_copy_(0, self.written_slots, v.to(values.dtype))
        if len(self.reads) == 1:
            return self.reads[0](q, keys, values)
        out = torch.empty_like(q)
        for read in self.reads:
            out[read.rows] = read(q[read.rows], keys, values)
        return out


class SequenceRead:
    """A sequence that is computed alone: a prefill, a chunk, or a decode in a contiguous range.

    rows: its rows of the batch. slots: a range of slots (read as a view) or [S] indices (gathered).
    """

    def __init__(self, rows: slice, slots: slice | Tensor, context_length: int, device: torch.device) -> None:
        self.rows = rows
        self.slots = slots
        query_length = rows.stop - rows.start
        self.mask = None
        if 1 < query_length < context_length:
            # Row i is token context - query + i of the sequence: the triangle is aligned to the end.
            shape = (query_length, context_length)
            self.mask = torch.ones(shape, dtype=torch.bool, device=device).tril(context_length - query_length)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if isinstance(self.slots, slice):
            k, v = keys[self.slots], values[self.slots]
        else:
            k, v = keys.index_select(0, self.slots), values.index_select(0, self.slots)
        return attend_sequence(q, k.to(q.dtype), v.to(q.dtype), self.mask)


class DecodeRead:
    """Decodes that are computed together, padded to the longest.

    rows: [B] their rows of the batch. A padded position reads its own sequence's first slot, which is always
    written: its weight is exactly 0, and 0 times a number is 0, where 0 times NaN would not be.
    """

    def __init__(self, rows: Sequence[int], slots: Sequence[Tensor], device: torch.device) -> None:
        lengths = [len(row) for row in slots]
        self.longest = max(lengths)
        self.rows = torch.tensor(rows, device=device)
        padded = torch.stack([torch.cat((row, row[:1].expand(self.longest - len(row)))) for row in slots])
        self.slots = padded.flatten().to(device)
        # One buffer for all layers: a fresh one for each costs more, in page faults, than the gather itself.
        self.gathered: Tensor | None = None
        self.mask = None
        if min(lengths) < self.longest:
            unused = torch.arange(self.longest)[None] >= torch.tensor(lengths)[:, None]
            self.mask = torch.zeros(unused.shape).masked_fill(unused, float("-inf"))[:, None, None].to(device)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        B, H, D = q.shape
        G = keys.shape[1]
        if self.gathered is None:
            self.gathered = keys.new_empty(2, len(self.slots), G, D)
        torch.index_select(keys, 0, self.slots, out=self.gathered[0])
        torch.index_select(values, 0, self.slots, out=self.gathered[1])
        k, v = self.gathered.view(2, B, self.longest, G, D).transpose(2, 3).to(q.dtype)
        mask = None if self.mask is None else self.mask.to(q.dtype)
        # The H / G query heads that share a KV head stand as rows: [B, G, H / G, D] against [B, G, S, D].
        out = F.scaled_dot_product_attention(q.reshape(B, G, H // G, D), k, v, attn_mask=mask)
        return out.reshape(B, H, D)


def plan_reads(batch: AttentionBatch, device: torch.device) -> list[SequenceRead | DecodeRead]:
    """Decide who is computed alone and which decodes are computed together."""
    reads: list[SequenceRead | DecodeRead] = []
    decodes: list[tuple[int, Tensor]] = []
    offsets = torch.arange(batch.block_size)
    stop = 0
    for index, (query_length, context_length) in enumerate(
        zip(batch.query_lengths, batch.context_lengths, strict=True)
    ):
        start, stop = stop, stop + query_length
        if batch.starts is not None:
            first = batch.starts[index]
            view = slice(first, first + context_length)
            reads.append(SequenceRead(slice(start, stop), view, context_length, device))
            continue
        assert batch.block_tables is not None
        table = torch.tensor(batch.block_tables[index], dtype=torch.int64)
        slots = (table[:, None] * batch.block_size + offsets).flatten()[:context_length]
        if query_length == 1:
            decodes.append((start, slots))
        else:
            reads.append(SequenceRead(slice(start, stop), slots.to(device), context_length, device))
    for group in group_by_length(decodes):
        reads.append(DecodeRead([row for row, _ in group], [slots for _, slots in group], device))
    return reads


def group_by_length(decodes: Sequence[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    """Split decodes into groups of similar length; each group keeps the order of the batch."""
    groups: list[list[tuple[int, Tensor]]] = []
    for row, slots in sorted(decodes, key=lambda decode: -len(decode[1])):
        longest = len(groups[-1][0][1]) if groups else 0
        if groups and longest - len(slots) <= max(PADDING_TOKENS, PADDING_SHARE * longest):
            groups[-1].append((row, slots))
        else:
            groups.append([(row, slots)])
    return [sorted(group, key=lambda decode: decode[0]) for group in groups]


def attend_sequence(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of one sequence: q [Lq, H, D] to k and v [S, G, D]. Returns [Lq, H, D].

    mask: [Lq, S] True where a query may look; None is causal when Lq = S, and everything when Lq = 1.
    """
    Lq, H, D = q.shape
    S, G, _ = k.shape
    if Lq == 1:  # the query heads that share a KV head stand as rows, so that K and V are read once
        q = q.reshape(1, G, H // G, D)
        return F.scaled_dot_product_attention(q, k.transpose(0, 1)[None], v.transpose(0, 1)[None]).reshape(1, H, D)
    q = q.reshape(Lq, G, H // G, D).permute(1, 2, 0, 3)  # [G, H / G, Lq, D]
    k = k.transpose(0, 1)[:, None].expand(G, H // G, S, D)  # stride 0 over the query heads that share it
    v = v.transpose(0, 1)[:, None].expand(G, H // G, S, D)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out.permute(2, 0, 1, 3).reshape(Lq, H, D)


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
