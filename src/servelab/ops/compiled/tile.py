"""One tile of attention: 32 slots of a cache, one KV head, all query rows that share it. See `attention.py`."""

from typing import Any

import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from servelab.ops.compiled.kernel import FAST_MATH
from servelab.ops.compiled.linear import tile_rows
from servelab.ops.compiled.number import read_scale, read_vector
from servelab.ops.compiled.vector import as_floats, as_integers, exp2, fetch, make_fold, make_product, transpose_8x8

TILE = 32
ONES = 8  # the place in `factors` from which on they are 1

multiply = make_product("float32", accumulate=False)
accumulate = make_product("float32", accumulate=True)
largest_of_tile = make_fold(TILE // 8, sum_up=False)
sum_of_tile = make_fold(TILE // 8, sum_up=True)


@njit(fastmath=FAST_MATH)
def attend_tile(
    layer: Any,
    plan: Any,
    slots: Any,
    first: Any,
    count: Any,
    head: Any,
    position: Any,
    rows: Any,
    in_place: Any,
    addresses: Any,
    wide_k: Any,
    wide_v: Any,
    turned: Any,
    scores: Any,
    factors: Any,
    queries: Any,
    part: Any,
) -> None:
    """Attend to the slots ``slots[first : first + 32]`` of the `count` of a range, with one KV head.

    position: of the first rows' token, counted from the beginning of the range. The others as in `attend_range`.
    """
    D, width, kind, group = plan.head_dim, plan.width, plan.kind, plan.heads // plan.kv_heads
    lines = carray(as_integers(addresses), TILE)
    keys = min(TILE, count - first)
    for i in range(keys):
        slot = slots[first + i]
        place = slot * layer.slot_stride + head * layer.head_stride
        scale_place = slot * layer.scale_slot_stride + head * layer.scale_head_stride
        if in_place:
            lines[i] = layer.keys + place
            continue
        scale = read_scale(kind, layer.key_scales + scale_place)
        read_vector(kind, layer.keys + place, scale, D, wide_k + 4 * i * width)
        scale = read_scale(kind, layer.value_scales + scale_place)
        read_vector(kind, layer.values + place, scale, D, wide_v + 4 * i * width)
    # Ask for the next tile bit by bit: a processor waits when more than a few lines are on their way.
    upcoming, some = first + TILE, (64 + D - 1) // D
    # Behind the last key, rows of an earlier tile may be left: `weigh` overwrites whatever score they give.
    for d in range(0, D, 8):
        for i in range(0, TILE, 8):
            for place in range(upcoming, min(upcoming + some, count)):
                ahead = slots[place] * layer.slot_stride + head * layer.head_stride
                for line in range(0, layer.head_stride, 64):
                    fetch(layer.keys + ahead + line)
                    fetch(layer.values + ahead + line)
            upcoming += some
            transpose_8x8(addresses + 8 * i, 4 * d, turned + 4 * (d * TILE + i), 4 * TILE)
    row = 0
    while row < rows:
        some = tile_rows(rows - row)
        visible = position + (row + some - 1) // group - first + 1  # keys that the last row sees
        if visible > 0:
            multiply(some, turned, 4 * TILE, D, queries + 4 * row * width, 4 * width, scores, 4 * TILE, 0)
            multiply(some, turned + 64, 4 * TILE, D, queries + 4 * row * width, 4 * width, scores + 64, 4 * TILE, 0)
            for r in range(some):
                visible = min(position + (row + r) // group - first + 1, keys)
                weigh(scores + 4 * r * TILE, visible, part, rows, width, row + r, factors + 4 * r)
            acc = part + 4 * row * width
            if in_place:
                add_in_place(layer, slots, first, keys, head, some, scores, acc, width, factors)
            else:
                add_values(some, wide_v, 4 * width, keys, scores, acc, width, factors)
        row += some


@njit(fastmath=FAST_MATH)
def add_values(rows: Any, v: Any, v_stride: Any, keys: Any, weights: Any, acc: Any, width: Any, factors: Any) -> None:
    """``acc = acc * factors + weights @ V``. Values [keys, width] lie `v_stride` bytes apart; weights: [rows, 32]."""
    for d in range(0, width, 16):
        accumulate(rows, v + 4 * d, v_stride, keys, weights, 4 * TILE, acc + 4 * d, 4 * width, factors)


@njit(fastmath=FAST_MATH)
def add_in_place(
    layer: Any,
    slots: Any,
    first: Any,
    keys: Any,
    head: Any,
    rows: Any,
    weights: Any,
    acc: Any,
    width: Any,
    factors: Any,
) -> None:
    """`add_values` of the slots ``slots[first : first + keys]``, one run of neighbouring slots after the other."""
    start, stop, factor = first, first + keys, factors
    while start < stop:
        end = end_of_run(slots, start, stop)
        v = layer.values + slots[start] * layer.slot_stride + head * layer.head_stride
        add_values(rows, v, layer.slot_stride, end - start, weights + 4 * (start - first), acc, width, factor)
        start, factor = end, factors + 4 * ONES


@njit(fastmath=FAST_MATH)
def end_of_run(slots: Any, place: Any, stop: Any) -> Any:
    """The first place behind `place`, at most `stop`, whose slot is not the neighbour of the one before."""
    place += 1
    while place < stop and slots[place] == slots[place - 1] + 1:
        place += 1
    return place


@njit(fastmath=FAST_MATH)
def weigh(scores: Any, visible: Any, part: Any, rows: Any, width: Any, row: Any, factor: Any) -> None:
    """Turn a row of 32 scores into weights, `visible` of them not 0; note maximum, sum and the rescaling factor."""
    score = carray(as_floats(scores), TILE)
    maxima = carray(as_floats(part + 4 * rows * width), rows)
    sums = carray(as_floats(part + 4 * rows * (width + 1)), rows)
    for i in range(max(visible, 0), TILE):
        score[i] = -np.inf
    before = maxima[row]
    largest = largest_of_tile(scores)
    new = largest if largest > before else before
    for i in range(TILE):
        score[i] = exp2(score[i] - new)
    rescaled = exp2(before - new)
    carray(as_floats(factor), 1)[0] = rescaled
    sums[row] = sums[row] * rescaled + sum_of_tile(scores)
    maxima[row] = new
