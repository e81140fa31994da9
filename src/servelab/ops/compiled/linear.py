"""The linear layer for few tokens and for many: every weight is read once, in the order in which it lies.

W in panels of 16 rows, each panel column by column        one item of work: a group of panels x a block of tokens

  panel 0: w[0..15, 0]  w[0..15, 1]  ...  w[0..15, k-1]      for each panel: 6 tokens at a time, 6 x 16 sums
  panel 1: w[16..31, 0] ...                                  in registers, one pass over its columns
"""

from typing import Any

import torch
from numba import njit
from numba.np.numpy_support import carray
from torch import Tensor

from servelab.ops.compiled import team
from servelab.ops.compiled.kernel import Kernel
from servelab.ops.compiled.vector import MOST_ROWS, as_floats, make_product, make_stack, take_next

PANEL = 16
# Tokens of a block times k: x stays in the second-level cache while all panels pass by. 56 Ki floats are 224 KiB.
BLOCK_FLOATS = 56 * 1024

multiply_bfloat16 = make_product("bfloat16", accumulate=False)
multiply_float32 = make_product("float32", accumulate=False)
room_for_sums = make_stack(PANEL * MOST_ROWS)


def multiply_panels(arguments: Any) -> None:
    """arguments: counter, panels, bytes of a weight, n, k, bias or 0, x, tokens, out, and the size of an item:

    tokens of a block, panels of a group. x [tokens, k], out [tokens, n] and bias [n] are float32.
    """
    weight, width, n, k = arguments[1], arguments[2], arguments[3], arguments[4]
    bias, x, tokens, out = arguments[5], arguments[6], arguments[7], arguments[8]
    block, group = arguments[9], arguments[10]
    panels = (n + PANEL - 1) // PANEL
    groups = (panels + group - 1) // group
    items = groups * ((tokens + block - 1) // block)
    sums = room_for_sums()
    while True:
        item = take_next(arguments)
        if item >= items:
            break
        first, start = item // groups * block, item % groups * group
        last, stop = min(first + block, tokens), min(start + group, panels)
        for panel in range(start, stop):
            w, w_stride = weight + panel * k * PANEL * width, PANEL * width
            token = first
            while token < last:
                rows = tile_rows(last - token)
                if width == 2:
                    multiply_bfloat16(rows, w, w_stride, k, x + token * k * 4, k * 4, sums, PANEL * 4, 0)
                else:
                    multiply_float32(rows, w, w_stride, k, x + token * k * 4, k * 4, sums, PANEL * 4, 0)
                store_sums(sums, rows, bias, out + token * n * 4, n, panel * PANEL)
                token += rows


@njit(inline="always")
def tile_rows(left: Any) -> Any:
    """How many of `left` rows the next tile takes: 6, or what leaves the last two tiles alike (7 = 4 + 3)."""
    if left <= MOST_ROWS:
        return left
    return MOST_ROWS if left >= 2 * MOST_ROWS else (left + 1) // 2


@njit(inline="always")
def store_sums(sums: Any, rows: Any, bias: Any, out: Any, n: Any, column: Any) -> None:
    """Copy [rows, 16] sums to columns `column`.. of out [rows, n], as many as there are, and add the bias [n]."""
    columns = min(PANEL, n - column)
    source, target = carray(as_floats(sums), rows * PANEL), carray(as_floats(out), rows * n)
    for row in range(rows):
        for i in range(columns):
            target[row * n + column + i] = source[row * PANEL + i]
    if bias != 0:
        added = carray(as_floats(bias), n)
        for row in range(rows):
            for i in range(columns):
                target[row * n + column + i] += added[column + i]


MULTIPLY = Kernel(multiply_panels)


def linear(x: Tensor, panels: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """``x W^T + bias`` in float32: x [..., in] -> [..., out]. panels: `servelab.ops.panel.pack_panels` of W."""
    k, n = panels.shape[1], out_features
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], n)
    tokens = out.numel() // n
    threads = torch.get_num_threads()
    block = max(MOST_ROWS, BLOCK_FLOATS // k // MOST_ROWS * MOST_ROWS)
    group = max(1, min(8, len(panels) // (4 * threads)))
    address = 0 if bias is None else bias.data_ptr()
    weight = (panels.data_ptr(), panels.element_size(), n, k)
    arguments = team.pack((0, *weight, address, x.data_ptr(), tokens, out.data_ptr(), block, group))
    team.run(MULTIPLY.address, arguments, threads)
    return out
