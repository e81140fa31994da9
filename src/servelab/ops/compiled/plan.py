"""`PagedRead`: what the compiled attention needs to know of a step, laid out once and used by every layer."""

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from servelab.ops.batch import AttentionBatch, KVView
from servelab.ops.compiled import team
from servelab.ops.compiled.attention import ATTEND, RANGE, Layer, Plan, scratch_floats
from servelab.ops.compiled.number import FORMATS
from servelab.ops.compiled.part import part_floats

# Query rows of an item of work: their vectors, sums and those of a range stay in the second-level cache.
BLOCK_ROWS = 96
# With as many for each thread, one takes the KV heads of a range together: a slot's numbers lie side by side in memory.
BUNDLES = 4
# Products of query and key numbers for which a second thread pays.
PARALLEL_PRODUCTS = 32 * 1024

# The fields of a Layer that change from step to step: from `plan` to `out`.
STEP_FIELDS = slice(4, 12)
# Of each storage: the layers, where the first one's keys lie, and all their places.
PLACES: "WeakKeyDictionary[KVView, tuple[tuple[int, ...], int, npt.NDArray[np.int64]]]" = WeakKeyDictionary()


class PagedRead:
    """Writes and reads a KV cache in place, for any mix of sequences: see `servelab.ops.compiled.attention`."""

    def __init__(self, batch: AttentionBatch, storage: KVView) -> None:
        self.batch = batch
        self.storage = storage
        self.num_kv_heads, self.head_dim = storage.keys(0).shape[2:]
        self.num_heads = self.threads = 0
        self.plan = Plan()

    def prepare(self, num_heads: int, threads: int) -> None:
        """Lay out the step for H query heads: which items of work there are, and room for what they compute."""
        if (num_heads, threads) == (self.num_heads, self.threads):
            return
        self.num_heads, self.threads = num_heads, threads
        batch, G, D = self.batch, self.num_kv_heads, self.head_dim
        group = num_heads // G
        width = -(-D // 16) * 16
        block_tokens = max(1, BLOCK_ROWS // group)
        items, parts = [], []
        num_parts = 0
        for queries, context in zip(batch.query_lengths, batch.context_lengths, strict=True):
            ranges = -(-context // RANGE)
            split = queries <= block_tokens and ranges > 1
            items.append(G * (ranges if split else -(-queries // block_tokens)))
            parts.append(num_parts if split else -1)
            if split:
                num_parts += ranges * G * part_floats(width, queries * group)
        bundle = G if sum(items) >= BUNDLES * G * threads else 1
        room = scratch_floats(width, min(block_tokens, max(batch.query_lengths)) * group, bundle)
        self.scratch = torch.empty(threads * room + num_parts)

        sequences = len(items)
        tables = batch.block_tables or [[0]] * sequences
        self.tables = array("q", chain.from_iterable(tables))
        first_table, _ = self.tables.buffer_info()
        columns = {
            "slots": batch.slot_mapping,
            "first_rows": [0, *accumulate(batch.query_lengths)],
            "query_lengths": batch.query_lengths,
            "contexts": batch.context_lengths,
            "tables": [first_table + 8 * start for start in (0, *accumulate(map(len, tables)))],
            "bases": batch.starts or [0] * sequences,
            "first_items": [0, *accumulate(items)],
            "first_parts": parts,
        }
        self.columns = array("q", chain.from_iterable(columns.values()))
        address, _ = self.columns.buffer_info()
        self.plan = Plan(
            heads=num_heads,
            kv_heads=G,
            head_dim=D,
            width=width,
            tokens=batch.num_tokens,
            sequences=sequences,
            kind=format_index(self.storage),
            block_size=batch.block_size if batch.starts is None else max(batch.context_lengths),
            block_tokens=block_tokens,
            bundle=bundle,
            items=sum(items),
            parts=self.scratch.data_ptr() + 4 * threads * room,
            has_parts=int(num_parts > 0),
            scratch=self.scratch.data_ptr(),
            scratch_bytes=4 * room,
            barrier=team.barrier(),
        )
        for name, column in columns.items():
            setattr(self.plan, name, address)
            address += 8 * len(column)

    def layers(
        self, indices: Sequence[int], q: int, k: int, v: int, strides: tuple[int, int, int], out: int
    ) -> ctypes.Array[Layer]:
        """What each layer reads and writes. q, k, v, out: addresses of float32; strides: bytes a row of q, k and v."""
        places = np.array(layer_places(self.storage, tuple(indices)))  # a copy
        (q_stride, k_stride, v_stride), plan = strides, ctypes.addressof(self.plan)
        places[:, STEP_FIELDS] = plan, q, q_stride, k, k_stride, v, v_stride, out
        return (Layer * len(indices)).from_buffer(places.data)

    def __call__(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `servelab.ops.attention.Attention`."""
        T, H, D = q.shape
        dtype = q.dtype
        products = sum(map(int.__mul__, self.batch.query_lengths, self.batch.context_lengths)) * H * D
        threads = team.threads_for(products, PARALLEL_PRODUCTS)
        self.prepare(H, threads)
        q, k, v = as_rows(q), as_rows(k), as_rows(v)
        out = torch.empty(T, H, D)
        strides = (q.stride(0) * 4, k.stride(0) * 4, v.stride(0) * 4)
        layers = self.layers([index], q.data_ptr(), k.data_ptr(), v.data_ptr(), strides, out.data_ptr())
        team.run(ATTEND, layers[0], threads)
        return out if dtype == torch.float32 else out.to(dtype)


def layer_places(storage: KVView, indices: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Where the keys and values of layers lie, as `Layer` structures [L, fields]: looked up once for a storage."""
    first = storage.keys(indices[0]).data_ptr()
    kept = PLACES.get(storage)
    if kept is None or kept[:2] != (indices, first):
        kept = PLACES[storage] = (indices, first, np.stack([layer_place(storage, index) for index in indices]))
    return kept[2]


def layer_place(storage: KVView, index: int) -> npt.NDArray[np.int64]:
    keys, values = storage.keys(index), storage.values(index)
    width = keys.element_size()
    layer = Layer(
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        slot_stride=keys.stride(1) * width,
        head_stride=keys.stride(2) * width,
    )
    key_scales, value_scales = storage.key_scales(index), storage.value_scales(index)
    if key_scales is not None and value_scales is not None:
        width = key_scales.element_size()
        layer.key_scales, layer.value_scales = key_scales.data_ptr(), value_scales.data_ptr()
        layer.scale_head_stride = key_scales.stride(-1) * width
        layer.scale_slot_stride = key_scales.stride(-2) * width if key_scales.dim() > 1 else 0
    return as_numbers(layer)


def as_numbers(layer: Layer) -> npt.NDArray[np.int64]:
    """The fields of a layer, a copy."""
    return np.frombuffer(bytes(layer), np.int64)


def as_rows(x: Tensor) -> Tensor:
    """x [T, heads, D] in float32 with the numbers of a row beside each other."""
    x = x.float()
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


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
