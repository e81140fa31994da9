"""Attention that reads keys and values where they lie, through the block table: nothing is gathered first.

For one KV head and one range of a sequence's context, tile by tile (FlashAttention, Dao et al. 2022):

    32 slots of the table -> K tile [32, D] widened, turned to [D, 32];  V tile [32, D] widened
    6 query rows at a time:  S = q K^T  [6, 32],  masked;   new = max(m, max S);   P = 2 ** (S - new)
                             l = l 2 ** (m - new) + sum P;   acc = acc 2 ** (m - new) + P V;   m = new

The query heads that share the KV head are rows beside each other, so its keys and values are read once. A context is
split into ranges of 256 positions (Flash-Decoding, Dao et al. 2023), computed by any thread and merged in order:

    decode, verification: an item of work is one range; the parts are merged when all are done
    prefill, a chunk:     an item is a block of query tokens; it goes through its ranges, and merges as it goes

Tiles and ranges lie at the same positions for every query, and a masked position adds exactly 0. So a token's result
is the same, bit for bit, in a prefill, a chunk, a decode or a verification, alone or in a batch, on any threads.
"""

import ctypes
from typing import Any

import numba
import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from servelab.ops.compiled.kernel import FAST_MATH, Kernel
from servelab.ops.compiled.number import FLOAT32, INT8, int8_scale, read_scale, write_vector
from servelab.ops.compiled.part import clear, finish, merge, part_floats
from servelab.ops.compiled.tile import ONES, TILE, attend_tile
from servelab.ops.compiled.vector import (
    MOST_ROWS,
    address_of,
    as_floats,
    as_halves,
    as_integers,
    call,
    make_pointer,
    take_next,
)

RANGE = 256


class Plan(ctypes.Structure):
    """What is the same for all layers of a step: numbers, and addresses of int64 arrays with one number a sequence.

    bundle: items that a thread takes together, one or those of all KV heads.
    """

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("heads", "kv_heads", "head_dim", "width", "tokens", "sequences", "kind", "block_size", "block_tokens"),
            *("bundle", "items", "slots", "first_rows", "query_lengths", "contexts", "tables", "bases", "first_items"),
            *("first_parts", "parts", "has_parts", "scratch", "scratch_bytes", "barrier"),
        )
    ]


class Layer(ctypes.Structure):
    """What changes from layer to layer: counters, addresses, and bytes from one row, slot or head to the next."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("written", "threads", "taken", "merged"),
            *("plan", "q", "q_stride", "k", "k_stride", "v", "v_stride", "out"),
            *("keys", "values", "slot_stride", "head_stride", "key_scales", "value_scales"),
            *("scale_slot_stride", "scale_head_stride"),
        )
    ]


WRITTEN, THREADS, TAKEN, MERGED = range(4)  # the counters' places in a Layer
as_plan = make_pointer(numba.from_dtype(np.dtype(Plan)))
as_layer = make_pointer(numba.from_dtype(np.dtype(Layer)))


def scratch_floats(width: int, rows: int, heads: int) -> int:
    """Floats of a thread's room: see `attend_range` for what lies in it, and behind it two parts."""
    fixed = 2 * RANGE + 2 * TILE + 3 * TILE * width + MOST_ROWS * TILE + 16
    return fixed + max(heads * rows * width, rows * width + 2 * part_floats(width, rows))


@njit(fastmath=FAST_MATH)
def write_tokens(counters: Any, place: Any, layer: Any, plan: Any) -> None:
    """Put the keys and values of the new tokens into their slots. Threads share ``counters[place]``."""
    while True:
        token = take_next(counters, place)
        if token >= plan.tokens:
            break
        write_token(layer, plan, token)


@njit(fastmath=FAST_MATH)
def attend_items(counters: Any, place: Any, layer: Any, plan: Any, scratch: Any) -> None:
    """Attend, once all is written. scratch: the thread's own room."""
    first_items = carray(as_integers(plan.first_items), plan.sequences + 1)
    sequence = 0
    while True:
        first = take_next(counters, place) * plan.bundle
        if first >= plan.items:
            break
        while first >= first_items[sequence + 1]:
            sequence += 1
        attend_item(layer, plan, scratch, sequence, first - first_items[sequence])


@njit(fastmath=FAST_MATH)
def merge_items(counters: Any, place: Any, layer: Any, plan: Any, scratch: Any) -> None:
    """Merge what the items of a context gave, once all have."""
    while True:
        item = take_next(counters, place)
        if item >= plan.sequences * plan.kv_heads:
            break
        merge_parts(layer, plan, scratch, item // plan.kv_heads, item % plan.kv_heads)


def attend_alone(counters: Any) -> None:
    """One layer's attention. counters: a `Layer`, which begins with them."""
    layer = carray(as_layer(address_of(counters)), 1)[0]
    plan = carray(as_plan(layer.plan), 1)[0]
    write_tokens(counters, WRITTEN, layer, plan)
    call(plan.barrier)
    scratch = plan.scratch + take_next(counters, THREADS) * plan.scratch_bytes
    attend_items(counters, TAKEN, layer, plan, scratch)
    if plan.has_parts != 0:
        call(plan.barrier)
        merge_items(counters, MERGED, layer, plan, scratch)


@njit(fastmath=FAST_MATH)
def write_token(layer: Any, plan: Any, token: Any) -> None:
    """Put the key and the value of a new token into its slot, in the cache's format; a slot below 0 is not written."""
    slot = carray(as_integers(plan.slots), plan.tokens)[token]
    if slot < 0:
        return
    D, kind = plan.head_dim, plan.kind
    for head in range(plan.kv_heads):
        place = slot * layer.slot_stride + head * layer.head_stride
        scale_place = slot * layer.scale_slot_stride + head * layer.scale_head_stride
        k = layer.k + token * layer.k_stride + head * D * 4
        v = layer.v + token * layer.v_stride + head * D * 4
        if kind == INT8:
            carray(as_halves(layer.key_scales + scale_place), 1)[0] = int8_scale(k, D)
            carray(as_halves(layer.value_scales + scale_place), 1)[0] = int8_scale(v, D)
        write_vector(kind, k, read_scale(kind, layer.key_scales + scale_place), D, layer.keys + place)
        write_vector(kind, v, read_scale(kind, layer.value_scales + scale_place), D, layer.values + place)


@njit(fastmath=FAST_MATH)
def attend_item(layer: Any, plan: Any, scratch: Any, sequence: Any, item: Any) -> None:
    """One range of a context for all its queries, or all ranges for one block of them; of `plan.bundle` KV heads."""
    width, group = plan.width, plan.heads // plan.kv_heads
    head, unit = item % plan.kv_heads, item // plan.kv_heads
    queries = carray(as_integers(plan.query_lengths), plan.sequences)[sequence]
    context = carray(as_integers(plan.contexts), plan.sequences)[sequence]
    first_row = carray(as_integers(plan.first_rows), plan.sequences)[sequence]
    first_part = carray(as_integers(plan.first_parts), plan.sequences)[sequence]

    tokens, first_token = queries, 0
    if queries > plan.block_tokens:
        first_token = unit * plan.block_tokens
        tokens = min(plan.block_tokens, queries - first_token)
    rows = tokens * group
    position = context - queries + first_token
    part = scratch + 4 * (2 * RANGE + 2 * TILE + 3 * TILE * width + MOST_ROWS * TILE + 16 + rows * width)
    total = part + 4 * rows * (width + 2)
    queries = part - 4 * rows * width
    row = first_row + first_token
    if first_part >= 0:
        for i in range(plan.bundle):  # those of the further heads reach into the room of parts, which is not needed
            load_queries(layer, plan, row, tokens, head + i, queries + 4 * i * rows * width)
        part = plan.parts + 4 * (first_part + item * rows * (width + 2))
        start, stop = unit * RANGE, min(unit * RANGE + RANGE, context)
        attend_range(layer, plan, scratch, sequence, head, plan.bundle, position, rows, start, stop, part)
        return
    for i in range(plan.bundle):
        load_queries(layer, plan, row, tokens, head + i, queries)
        clear(total, rows, width)
        for start in range(0, position + tokens, RANGE):
            stop = min(start + RANGE, position + tokens)
            attend_range(layer, plan, scratch, sequence, head + i, 1, position, rows, start, stop, part)
            merge(total, part, rows, width)
        finish(layer, plan, row, tokens, head + i, total)


@njit(fastmath=FAST_MATH)
def merge_parts(layer: Any, plan: Any, scratch: Any, sequence: Any, head: Any) -> None:
    """Merge what the ranges of a sequence gave, in their order; nothing where an item has done it all."""
    width, group = plan.width, plan.heads // plan.kv_heads
    first_part = carray(as_integers(plan.first_parts), plan.sequences)[sequence]
    if first_part < 0:
        return
    tokens = carray(as_integers(plan.query_lengths), plan.sequences)[sequence]
    context = carray(as_integers(plan.contexts), plan.sequences)[sequence]
    first_row = carray(as_integers(plan.first_rows), plan.sequences)[sequence]
    rows = tokens * group
    clear(scratch, rows, width)
    for unit in range((context + RANGE - 1) // RANGE):
        item = unit * plan.kv_heads + head
        merge(scratch, plan.parts + 4 * (first_part + item * rows * (width + 2)), rows, width)
    finish(layer, plan, first_row, tokens, head, scratch)


@njit(fastmath=FAST_MATH)
def load_queries(layer: Any, plan: Any, row: Any, tokens: Any, head: Any, out: Any) -> None:
    """Query vectors of one KV head as rows [tokens * H / G, width], scaled so that a power of 2 makes a weight."""
    D, width, group = plan.head_dim, plan.width, plan.heads // plan.kv_heads
    scale = np.float32(1.4426950408889634 / np.sqrt(np.float64(D)))
    for token in range(tokens):
        q = carray(as_floats(layer.q + (row + token) * layer.q_stride + head * group * D * 4), (group, D))
        target = carray(as_floats(out + token * group * width * 4), (group, width))
        for r in range(group):
            for d in range(D):
                target[r, d] = q[r, d] * scale


@njit(fastmath=FAST_MATH)
def attend_range(
    layer: Any,
    plan: Any,
    scratch: Any,
    sequence: Any,
    first_head: Any,
    heads: Any,
    position: Any,
    rows: Any,
    start: Any,
    stop: Any,
    part: Any,
) -> None:
    """Attend to positions start..stop-1 and leave acc, m and l in `part`. position: of the first rows' token.

    heads: KV heads from `first_head` on, whose parts lie behind each other. Tile by tile they take turns, so that the
    slots of a tile, which lie side by side for all heads, come from memory together.
    In `scratch`: slots [256], row addresses [32] (both int64), K and V widened [32, width], K turned [width, 32],
    scores [6, 32], factors [16] (the last 6 of them 1), and the queries [heads, rows, width].

    A cache of float32 is read where it lies; other formats, and heads that do not fill vectors, are widened first.
    """
    width = plan.width
    in_place = plan.kind == FLOAT32 and width == plan.head_dim
    addresses = scratch + 8 * RANGE
    wide_k = addresses + 8 * TILE
    wide_v = wide_k + 4 * TILE * width
    turned = wide_v + 4 * TILE * width
    scores = turned + 4 * TILE * width
    factors = scores + 4 * MOST_ROWS * TILE
    queries = factors + 4 * 16
    count = stop - start
    slots = carray(as_integers(scratch), RANGE)
    find_slots(plan, sequence, start, count, slots)
    lines = carray(as_integers(addresses), TILE)
    for i in range(TILE):
        lines[i] = wide_k + 4 * i * width
    carray(as_floats(factors + 4 * ONES), MOST_ROWS)[:] = np.float32(1.0)
    for head in range(heads):
        clear(part + 4 * head * rows * (width + 2), rows, width)
    for first in range(0, count, TILE):
        for head in range(first_head, first_head + heads):
            at = head - first_head
            attend_tile(
                *(layer, plan, slots, first, count, head, position - start, rows, in_place),
                *(addresses, wide_k, wide_v, turned, scores, factors),
                *(queries + 4 * at * rows * width, part + 4 * at * rows * (width + 2)),
            )


@njit(fastmath=FAST_MATH)
def find_slots(plan: Any, sequence: Any, start: Any, count: Any, slots: Any) -> None:
    """The slots of positions start..start+count-1 of a sequence, through its table."""
    size = plan.block_size
    base = carray(as_integers(plan.bases), plan.sequences)[sequence]
    block = start // size
    table = carray(as_integers(carray(as_integers(plan.tables), plan.sequences)[sequence]), block + count + 1)
    offset = start - block * size
    for i in range(count):
        if offset == size:
            block, offset = block + 1, 0
        slots[i] = base + table[block] * size + offset
        offset += 1


ATTEND = Kernel(attend_alone)
