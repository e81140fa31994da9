"""The online softmax: maximum and sum of a row in one pass, whatever its length.

A safe softmax takes three passes over a row of M numbers: the maximum, the sum of exp(x - maximum), the division. The
first two become one, if the sum so far is corrected each time that the maximum grows:

    of each tile      m' = max(m, max x)        l = exp(m - m') l  +  sum exp(x - m')
                                                    ^ what was summed under the old maximum
    example: [1, 3 | 2, 5]    after tile 1: m = 3, l = exp(-2) + 1 = 1.135;  after tile 2: m = 5, l = 1.203

Without the correction l would be 2.185, and every probability about half of what it should be. One program takes one
row, in tiles of SIZE. Bytes requested a row: 2 M e to read (once for m and l, once for the result), M e to write.
Step 2 of 4 on the way to `flash_attention`: what makes tiles possible.

Paper: https://arxiv.org/abs/1805.02867 (Online normalizer calculation for softmax).
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, launch
from servelab.kernels.shape import check_floats


def online_softmax_reference(x: Tensor) -> Tensor:
    """What `online_softmax` returns, in plain PyTorch."""
    return x.float().softmax(-1).to(x.dtype)  # [N, M]


@triton.jit
def _online_softmax(x, out, num_columns, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * num_columns
    m = tl.full([], float("-inf"), tl.float32)
    l = tl.full([], 0.0, tl.float32)
    for start in range(0, num_columns, SIZE):
        columns = start + tl.arange(0, SIZE)
        tile = tl.load(x + row + columns, mask=columns < num_columns, other=float("-inf")).to(tl.float32)
        new_m = tl.maximum(m, tl.max(tile, 0))
        anchor = tl.where(new_m == float("-inf"), 0.0, new_m)  # nothing but minus infinity so far
        l = tl.exp(m - anchor) * l + tl.sum(tl.exp(tile - anchor), 0)
        m = new_m
    for start in range(0, num_columns, SIZE):
        columns = start + tl.arange(0, SIZE)
        tile = tl.load(x + row + columns, mask=columns < num_columns, other=float("-inf")).to(tl.float32)
        tl.store(out + row + columns, tl.exp(tile - m) / l, mask=columns < num_columns)


def online_softmax(x: Tensor, *, size: int = 1024) -> Tensor:
    """Softmax over the last dimension of x [N, M], float32, float16 or bfloat16. size: of a tile, a power of 2.

    A row of minus infinities has no softmax: NaN, as in PyTorch. Returns [N, M] in x's dtype. Runs on a GPU or in
    Triton's interpreter; elsewhere the reference computes. Raises ValueError for shapes, dtypes or sizes that do not
    fit.
    """
    if x.dim() != 2 or not x.shape[1]:
        raise ValueError(f"expected x [N, M] with M of at least 1, got {list(x.shape)}")
    if size < 1 or size & (size - 1):
        raise ValueError(f"expected size as a power of 2, got {size}")
    check_floats(x=x)
    if not can_launch(x):
        return online_softmax_reference(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    launch(_online_softmax, (len(x),), x.device, x, out, x.shape[1], SIZE=size, num_warps=4)
    return out
