"""The linear layer for few tokens and for many: every weight is read once, in the order in which it lies.

W in panels of 16 rows, each panel column by column        one item of work: a group of panels x a block of tokens

  panel 0: w[0..15, 0]  w[0..15, 1]  ...  w[0..15, k-1]      for each panel: 6 tokens at a time, 6 x 16 sums
  panel 1: w[16..31, 0] ...                                  in registers, one pass over its columns
"""

from typing import Any

from numba import njit
from numba.np.numpy_support import carray
from torch import Tensor

from servelab.ops.compiled import team
from servelab.ops.compiled.kernel import FAST_MATH, Kernel
from servelab.ops.compiled.vector import MOST_ROWS, as_floats, make_product, make_stack, take_next

PANEL = 16
# Tokens of a block times k: x stays in the second-level cache while all panels pass by. 56 Ki floats are 224 KiB.
BLOCK_FLOATS = 56 * 1024
PREFETCH_BYTES = 1024
# Panels that a thread takes at a time: in sequence, but so that no thread waits long for the last.
MOST_PANELS = 8
# Products for which a second thread pays: below it, waking one takes longer than the work.
PARALLEL_PRODUCTS = 64 * 1024

multiply_bfloat16 = make_product("bfloat16", accumulate=False, ahead=PREFETCH_BYTES)
multiply_float32 = make_product("float32", accumulate=False, ahead=PREFETCH_BYTES)
room_for_sums = make_stack(PANEL * MOST_ROWS)


@njit(fastmath=FAST_MATH)
def multiply_panels(
    counters: Any,
    place: Any,
    panels: Any,
    width: Any,
    n: Any,
    k: Any,
    bias: Any,
    x: Any,
    tokens: Any,
    residual: Any,
    out: Any,
    threads: Any,
) -> None:
    """``out = x W^T + bias + residual``, by one of `threads` threads that share ``counters[place]``.

    panels: of W, numbers of `width` bytes. x [tokens, k], out and residual [tokens, n], bias [n]: float32; bias and
    residual may be 0. Everything but counters is a number or an address.
    """
    block = max(MOST_ROWS, BLOCK_FLOATS // k // MOST_ROWS * MOST_ROWS)
    num_panels = (n + PANEL - 1) // PANEL
    group = max(1, min(MOST_PANELS, num_panels // (4 * threads)))
    groups = (num_panels + group - 1) // group
    items = groups * ((tokens + block - 1) // block)
    sums = room_for_sums()
    while True:
        item = take_next(counters, place)
        if item >= items:
            break
        first, start = item // groups * block, item % groups * group
        last, stop = min(first + block, tokens), min(start + group, num_panels)
        for panel in range(start, stop):
            w, w_stride = panels + panel * k * PANEL * width, PANEL * width
            token = first
            while token < last:
                rows = tile_rows(last - token)
                if width == 2:
                    multiply_bfloat16(rows, w, w_stride, k, x + token * k * 4, k * 4, sums, PANEL * 4, 0)
                else:
                    multiply_float32(rows, w, w_stride, k, x + token * k * 4, k * 4, sums, PANEL * 4, 0)
                store_sums(sums, rows, bias, residual, token * n, out, n, panel * PANEL)
                token += rows


@njit(inline="always")
def tile_rows(left: Any) -> Any:
    """How many of `left` rows the next tile takes: 6, or what leaves the last two tiles alike (7 = 4 + 3)."""
    if left <= MOST_ROWS:
        return left
    return MOST_ROWS if left >= 2 * MOST_ROWS else (left + 1) // 2


@njit(fastmath=FAST_MATH)
def store_sums(sums: Any, rows: Any, bias: Any, residual: Any, place: Any, out: Any, n: Any, column: Any) -> None:
    """Copy [rows, 16] sums to columns `column`.. of out [rows, n], as many as there are; add bias and residual.

    place: of the first row, in floats from the start of `out` and `residual`.
    """
    columns = min(PANEL, n - column)
    source = carray(as_floats(sums), rows * PANEL)
    target = carray(as_floats(out + 4 * (place + column)), rows * n)
    if bias != 0:
        added = carray(as_floats(bias + 4 * column), columns)
        for row in range(rows):
            for i in range(columns):
                source[row * PANEL + i] += added[i]
    if residual != 0:
        before = carray(as_floats(residual + 4 * (place + column)), rows * n)
        for row in range(rows):
            for i in range(columns):
                source[row * PANEL + i] = before[row * n + i] + source[row * PANEL + i]
    for row in range(rows):
        for i in range(columns):
            target[row * n + i] = source[row * PANEL + i]


def linear_alone(arguments: Any) -> None:
    """arguments: the counter, then those of `multiply_panels` from `panels` on."""
    multiply_panels(
        arguments,
        0,
        arguments[1],
        arguments[2],
        arguments[3],
        arguments[4],
        arguments[5],
        arguments[6],
        arguments[7],
        arguments[8],
        arguments[9],
        arguments[10],
    )


MULTIPLY = Kernel(linear_alone)


def linear(x: Tensor, panels: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """``x W^T + bias`` in float32: x [..., in] -> [..., out]. panels: `servelab.ops.panel.pack_panels` of W."""
    k, n = panels.shape[1], out_features
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], n)
    tokens = out.numel() // n
    threads = team.threads_for(tokens * n * k, PARALLEL_PRODUCTS)
    weight = (panels.data_ptr(), panels.element_size(), n, k, 0 if bias is None else bias.data_ptr())
    arguments = team.pack((0, *weight, x.data_ptr(), tokens, 0, out.data_ptr(), threads))
    team.run(MULTIPLY, arguments, threads)
    return out
