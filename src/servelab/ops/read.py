"""Attention over a KV cache in PyTorch: what a sequence needs is gathered first, then attended to.

It runs everywhere, and it is what the compiled path is compared with. The price is the gather: K and V of a paged
sequence are copied, in every layer of every step.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from servelab.ops.batch import AttentionBatch
from servelab.ops.stored import StoredLayer

# Decodes are computed together while padding to the longest costs less than this share of it, or this many tokens.
PADDING_SHARE = 0.25
PADDING_TOKENS = 64


class SequenceRead:
    """A sequence that is computed alone: a prefill, a chunk, or a decode in a contiguous range.

    rows: its rows of the batch. slots: a range of slots (read as a view) or [S] indices (gathered).
    naive: compute the whole score matrix.
    """

    def __init__(
        self, rows: slice, slots: slice | Tensor, context_length: int, device: torch.device, naive: bool
    ) -> None:
        self.rows = rows
        self.slots = slots
        self.naive = naive
        query_length = rows.stop - rows.start
        self.mask = None
        if 1 < query_length < context_length:
            # Row i is token context - query + i of the sequence: the triangle is aligned to the end.
            shape = (query_length, context_length)
            self.mask = torch.ones(shape, dtype=torch.bool, device=device).tril(context_length - query_length)

    def __call__(self, q: Tensor, stored: StoredLayer) -> Tensor:
        if isinstance(self.slots, slice):
            k, v = stored.view(self.slots, q.dtype)
        else:
            k, v = stored.gather(self.slots, q.dtype)
        attend = attend_naively if self.naive else attend_sequence
        return attend(q, k, v, self.mask)


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
        self.mask = None
        if min(lengths) < self.longest:
            unused = torch.arange(self.longest)[None] >= torch.tensor(lengths)[:, None]
            self.mask = torch.zeros(unused.shape).masked_fill(unused, float("-inf"))[:, None, None].to(device)

    def __call__(self, q: Tensor, stored: StoredLayer) -> Tensor:
        B, H, D = q.shape
        k, v = (x.view(B, self.longest, -1, D).transpose(1, 2) for x in stored.gather(self.slots, q.dtype))
        mask = None if self.mask is None else self.mask.to(q.dtype)
        # The H / G query heads that share a KV head stand as rows: [B, G, H / G, D] against [B, G, S, D].
        G = k.shape[1]
        out = F.scaled_dot_product_attention(q.reshape(B, G, H // G, D), k, v, attn_mask=mask)
        return out.reshape(B, H, D)


def plan_reads(batch: AttentionBatch, device: torch.device, naive: bool = False) -> list[SequenceRead | DecodeRead]:
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
            reads.append(SequenceRead(slice(start, stop), view, context_length, device, naive))
            continue
        assert batch.block_tables is not None
        table = torch.tensor(batch.block_tables[index], dtype=torch.int64)
        slots = (table[:, None] * batch.block_size + offsets).flatten()[:context_length]
        if query_length == 1 and not naive:
            decodes.append((start, slots))
        else:
            reads.append(SequenceRead(slice(start, stop), slots.to(device), context_length, device, naive))
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
    """Attention of one sequence: q [Lq, H, D] to k and v [S, G, D], by tiles inside PyTorch. Returns [Lq, H, D].

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


def attend_naively(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """What `attend_sequence` returns, through the whole matrix of scores [H, Lq, S] in float32."""
    Lq, H, D = q.shape
    S, G, _ = k.shape
    if mask is None and Lq > 1:
        mask = torch.ones(Lq, S, dtype=torch.bool, device=q.device).tril()
    q = q.reshape(Lq, G, H // G, D).permute(1, 2, 0, 3)  # [G, H / G, Lq, D]
    scores = (q @ k.permute(1, 2, 0)[:, None]).float() * D**-0.5  # [G, H / G, Lq, S]
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(v.dtype)
    out = weights @ v.transpose(0, 1)[:, None]  # [G, H / G, Lq, D]
    return out.permute(2, 0, 1, 3).reshape(Lq, H, D)
