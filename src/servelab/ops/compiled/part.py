"""What attention over a part of a context gives, and how parts become one (Flash-Decoding, Dao et al. 2023).

For each query row: acc [width], the weighted sum of values; m, the largest score; l, the sum of weights. All weights of
a part are powers of 2 of (score - m), so a part joins another when both are rescaled to the larger m.
"""

from typing import Any

import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from servelab.ops.compiled.kernel import FAST_MATH
from servelab.ops.compiled.vector import as_floats, exp2

# The first maximum: below every score, and finite, so that differences of it are no NaN.
LOWEST = np.float32(-1e30)


def part_floats(width: int, rows: int) -> int:
    """Floats of what a range gives: acc [rows, width], m [rows], l [rows]."""
    return rows * (width + 2)


@njit(fastmath=FAST_MATH)
def clear(part: Any, rows: Any, width: Any) -> None:
    """Nothing seen yet: acc and l are 0, the maximum is below every score."""
    numbers = carray(as_floats(part), rows * (width + 2))
    numbers[:] = np.float32(0.0)
    numbers[rows * width : rows * (width + 1)] = LOWEST


@njit(fastmath=FAST_MATH)
def merge(total: Any, part: Any, rows: Any, width: Any) -> None:
    """Add a range's part to the total of the ranges before it, both rescaled to the larger maximum."""
    acc, other = carray(as_floats(total), (rows, width)), carray(as_floats(part), (rows, width))
    maxima, sums = (
        carray(as_floats(total + 4 * rows * width), rows),
        carray(as_floats(total + 4 * rows * (width + 1)), rows),
    )
    tops, more = (
        carray(as_floats(part + 4 * rows * width), rows),
        carray(as_floats(part + 4 * rows * (width + 1)), rows),
    )
    for row in range(rows):
        new = tops[row] if tops[row] > maxima[row] else maxima[row]
        old_factor, new_factor = exp2(maxima[row] - new), exp2(tops[row] - new)
        sums[row] = sums[row] * old_factor + more[row] * new_factor
        maxima[row] = new
        for d in range(width):
            acc[row, d] = acc[row, d] * old_factor + other[row, d] * new_factor


@njit(fastmath=FAST_MATH)
def finish(layer: Any, plan: Any, row: Any, tokens: Any, head: Any, total: Any) -> None:
    """Write ``acc / l`` of one KV head's rows to out [T, H, D]."""
    D, width, heads = plan.head_dim, plan.width, plan.heads
    group = heads // plan.kv_heads
    rows = tokens * group
    acc, sums = carray(as_floats(total), (rows, width)), carray(as_floats(total + 4 * rows * (width + 1)), rows)
    for token in range(tokens):
        out = carray(as_floats(layer.out + ((row + token) * heads + head * group) * D * 4), (group, D))
        for r in range(group):
            for d in range(D):
                out[r, d] = acc[token * group + r, d] / sums[token * group + r]
