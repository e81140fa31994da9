"""`PagedRead`: what the compiled attention needs to know of a step, laid out once and used by every layer."""

import ctypes
from array import array
from itertools import accumulate, chain

import torch
from torch import Tensor

from servelab.ops.batch import AttentionBatch, KVView
from servelab.ops.compiled import team
from servelab.ops.compiled.attention import ATTEND, RANGE, Layer, Plan, part_floats, scratch_floats
from servelab.ops.compiled.number import FORMATS

# Query rows of an item of work: their vectors, sums and those of a range stay in the second-level cache.
BLOCK_ROWS = 96
# Products of a query and a key, times the head dimension, for which a second thread pays.
PARALLEL_PRODUCTS = 32 * 1024


class PagedRead:
    """Writes and reads a KV cache in place, for any mix of sequences: see `servelab.ops.compiled.attention`."""

    def __init__(self, batch: AttentionBatch, storage: KVView) -> None:
        self.batch = batch
        self.storage = storage
        self.num_heads = 0  # known with the first queries

    def prepare(self, num_heads: int) -> None:
        """Lay out the step for H query heads: which items of work there are, and room for what they compute."""
        batch = self.batch
        G, D = self.storage.keys(0).shape[2:]
        group = num_heads // G
        width = -(-D // 16) * 16
        block_tokens = max(1, BLOCK_ROWS // group)
        self.num_heads = num_heads
        products = sum(q * c for q, c in zip(batch.query_lengths, batch.context_lengths, strict=True))
        self.threads = team.threads_for(products * num_heads * D, PARALLEL_PRODUCTS)

        first_rows, items, parts = [], [], []
        num_parts = row = 0
        for queries, context in zip(batch.query_lengths, batch.context_lengths, strict=True):
            first_rows.append(row)
            row += queries
            ranges = -(-context // RANGE)
            split = queries <= block_tokens and ranges > 1
            items.append(G * (ranges if split else -(-queries // block_tokens)))
            parts.append(num_parts if split else -1)
            if split:
                num_parts += ranges * G * part_floats(width, queries * group)
        first_items = [0, *accumulate(items)]

        sequences = len(batch.query_lengths)
        tables = batch.block_tables or [[0]] * sequences
        table_starts = [0, *accumulate(map(len, tables))][:-1]
        self.numbers = array("q", chain(batch.slot_mapping, first_rows, batch.query_lengths, batch.context_lengths))
        self.numbers.extend(batch.starts or [0] * sequences)
        self.numbers.extend(first_items)
        self.numbers.extend(parts)
        self.tables = array("q", chain.from_iterable(tables))
        table_address = self.tables.buffer_info()[0]
        self.numbers.extend(table_address + 8 * start for start in table_starts)
        address = self.numbers.buffer_info()[0]
        places = accumulate([address, *(8 * n for n in (row, *([sequences] * 4), sequences + 1, sequences))])
        slots, rows, queries_at, contexts, bases, items_at, parts_at, tables_at = places

        rows_of_item = min(block_tokens, max(batch.query_lengths)) * group
        room = scratch_floats(width, rows_of_item)
        self.scratch = torch.zeros(self.threads * room + num_parts)
        self.plan = Plan(
            heads=num_heads,
            kv_heads=G,
            head_dim=D,
            width=width,
            tokens=row,
            sequences=sequences,
            kind=format_index(self.storage),
            block_size=batch.block_size if batch.starts is None else max(batch.context_lengths),
            block_tokens=block_tokens,
            items=first_items[-1],
            slots=slots,
            first_rows=rows,
            query_lengths=queries_at,
            contexts=contexts,
            tables=tables_at,
            bases=bases,
            first_items=items_at,
            first_parts=parts_at,
            parts=self.scratch.data_ptr() + 4 * self.threads * room,
            scratch=self.scratch.data_ptr(),
            scratch_bytes=4 * room,
            barrier=team.barrier(),
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `servelab.ops.attention.Attention`."""
        T, H, D = q.shape
        if self.num_heads != H:
            self.prepare(H)
        dtype = q.dtype
        q, k, v = as_rows(q), as_rows(k), as_rows(v)
        out = torch.empty(T, H, D)
        keys, values = self.storage.keys(layer), self.storage.values(layer)
        width = keys.element_size()
        layer_arguments = Layer(
            plan=ctypes.addressof(self.plan),
            q=q.data_ptr(),
            q_stride=q.stride(0) * 4,
            k=k.data_ptr(),
            k_stride=k.stride(0) * 4,
            v=v.data_ptr(),
            v_stride=v.stride(0) * 4,
            out=out.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            slot_stride=keys.stride(1) * width,
            head_stride=keys.stride(2) * width,
        )
        key_scales, value_scales = self.storage.key_scales(layer), self.storage.value_scales(layer)
        if key_scales is not None and value_scales is not None:
            layer_arguments.key_scales = key_scales.data_ptr()
            layer_arguments.value_scales = value_scales.data_ptr()
            layer_arguments.scale_head_stride = key_scales.stride(-1) * key_scales.element_size()
            if key_scales.dim() > 1:
                layer_arguments.scale_slot_stride = key_scales.stride(1) * key_scales.element_size()
        team.run(ATTEND, layer_arguments, self.threads)
        return out.to(dtype)


def as_rows(x: Tensor) -> Tensor:
    """x [T, heads, D] in float32 with the numbers of a row beside each other."""
    x = x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def format_index(storage: KVView) -> int:
    name = str(storage.keys(0).dtype).removeprefix("torch.") if storage.format == "auto" else storage.format
    return FORMATS.index(name)


def can_read(storage: KVView) -> bool:
    """Whether the layers of a KV cache lie as the kernel reads them: on the CPU, slots at equal distances, whole heads.

    Other views are read by PyTorch.
    """
    keys, values = storage.keys(0), storage.values(0)
    if not keys.is_cpu or keys.stride() != values.stride() or keys.dtype != values.dtype:
        return False
    if storage.format == "auto" and keys.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    scales = storage.key_scales(0)
    if scales is not None and scales.dim() > 1 and not lies_in_slots(scales):
        return False
    return keys.stride(3) == 1 and lies_in_slots(keys)


def lies_in_slots(x: Tensor) -> bool:
    """Whether slot s of x [P, block_size, ...] is s equal steps from slot 0."""
    return x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
