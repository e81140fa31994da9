"""SwiGLU's activation: one half of a projection, through silu, gates the other.

    out = silu(gate) * up        silu(x) = x / (1 + exp(-x))        x [..., 2 I] = gate | up

One program takes SIZE numbers of one row. As separate operations silu(gate) is written and read back.
Bytes requested a row: 3 I e. FLOPs about 5 I.

Paper: https://arxiv.org/abs/2002.05202 (GLU Variants Improve Transformer).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, ceil_div, launch
from servelab.kernels.shape import check_floats

SIZE = 1024


def silu_and_mul_reference(gate_and_up: Tensor) -> Tensor:
    """What `silu_and_mul` returns, in plain PyTorch."""
    gate, up = gate_and_up.chunk(2, dim=-1)  # [..., I] each
    return F.silu(gate) * up  # [..., I]


@triton.jit
def _silu_and_mul(x, out, row_stride, inner_size, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    mask = places < inner_size
    gate = tl.load(x + row * row_stride + places, mask=mask, other=0.0)
    up = tl.load(x + row * row_stride + inner_size + places, mask=mask, other=0.0)
    gate32 = gate.to(tl.float32)
    # Rounded before it is multiplied, as the two operations would.
    activated = (gate32 * tl.sigmoid(gate32)).to(gate.dtype)
    tl.store(out + row * inner_size + places, activated.to(tl.float32) * up.to(tl.float32), mask=mask)


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """[..., 2 I], gate first, float32, float16 or bfloat16 -> [..., I] in the same dtype.

    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for an odd last
    dimension or another dtype.
    """
    if gate_and_up.dim() < 1 or gate_and_up.shape[-1] % 2 or not gate_and_up.shape[-1]:
        raise ValueError(f"expected [..., 2 I], got {list(gate_and_up.shape)}")
    check_floats(gate_and_up=gate_and_up)
    if not can_launch(gate_and_up):
        return silu_and_mul_reference(gate_and_up)
    rows = gate_and_up.reshape(-1, gate_and_up.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    inner_size = rows.shape[1] // 2
    out = torch.empty((*gate_and_up.shape[:-1], inner_size), dtype=rows.dtype, device=rows.device)
    grid = (len(rows), ceil_div(inner_size, SIZE))
    launch(_silu_and_mul, grid, rows.device, rows, out, rows.stride(0), inner_size, SIZE=SIZE, num_warps=4)
    return out
