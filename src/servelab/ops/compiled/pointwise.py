"""What stands between the matrix products: RMSNorm, SwiGLU's activation, the rotation of heads. One pass each.

With one token each of them is a few hundred numbers, and the price is not the arithmetic but starting PyTorch's
several operations for it.
"""

import functools
import struct
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.np.numpy_support import carray
from torch import Tensor

from servelab.ops.compiled import team
from servelab.ops.compiled.kernel import ANY_ORDER, Kernel
from servelab.ops.compiled.vector import as_floats, exp2, take_next

# Numbers for which a second thread pays: below it, waking one takes longer than the work.
PARALLEL_NUMBERS = 16 * 1024
LOG2_E = np.float32(1.4426950408889634)


def normalise_rows(arguments: Any) -> None:
    """arguments: counter, rows, n, x [rows, n], weight [n], out [rows, n], bits of eps."""
    rows, n = arguments[1], arguments[2]
    weight = carray(as_floats(arguments[4]), n)
    eps = np.int32(arguments[6]).view(np.float32)
    while True:
        row = take_next(arguments)
        if row >= rows:
            break
        x = carray(as_floats(arguments[3] + row * n * 4), n)
        out = carray(as_floats(arguments[5] + row * n * 4), n)
        factor = np.float32(1.0) / np.sqrt(sum_of_squares(x) / np.float32(n) + eps)
        for i in range(n):
            out[i] = x[i] * factor * weight[i]


@njit(fastmath=ANY_ORDER)
def sum_of_squares(x: Any) -> Any:
    total = np.float32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


def gate_rows(arguments: Any) -> None:
    """arguments: counter, rows, n, gate and up [rows, 2n], out [rows, n]."""
    rows, n = arguments[1], arguments[2]
    while True:
        row = take_next(arguments)
        if row >= rows:
            break
        gate = carray(as_floats(arguments[3] + row * n * 8), n)
        up = carray(as_floats(arguments[3] + row * n * 8 + n * 4), n)
        out = carray(as_floats(arguments[4] + row * n * 4), n)
        for i in range(n):
            out[i] = gate[i] / (np.float32(1.0) + exp2(-gate[i] * LOG2_E)) * up[i]


def rotate_heads(arguments: Any) -> None:
    """arguments: counter, rows, heads, D, x [rows, heads, D] and its bytes a row, cos and sin [rows, D], out."""
    rows, heads, D = arguments[1], arguments[2], arguments[3]
    half = D // 2
    while True:
        row = take_next(arguments)
        if row >= rows:
            break
        x = carray(as_floats(arguments[4] + row * arguments[5]), (heads, D))
        cos = carray(as_floats(arguments[6] + row * D * 4), D)
        sin = carray(as_floats(arguments[7] + row * D * 4), D)
        out = carray(as_floats(arguments[8] + row * heads * D * 4), (heads, D))
        for head in range(heads):
            for d in range(half):
                first, second = x[head, d], x[head, d + half]
                out[head, d] = first * cos[d] + second * sin[d]
                out[head, d + half] = second * cos[d + half] + first * sin[d + half]


NORMALISE, GATE, ROTATE = Kernel(normalise_rows), Kernel(gate_rows), Kernel(rotate_heads)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`servelab.ops.rms_norm` for float32 x [..., n]."""
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.shape[-1]
    arguments = (0, x.numel() // n, n, x.data_ptr(), weight.data_ptr(), out.data_ptr(), float_bits(eps))
    team.run(NORMALISE.address, team.pack(arguments), team.threads_for(x.numel(), PARALLEL_NUMBERS))
    return out


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """`servelab.ops.silu_and_mul` for float32 [..., 2n]."""
    gate_and_up = gate_and_up.contiguous()
    n = gate_and_up.shape[-1] // 2
    out = gate_and_up.new_empty(*gate_and_up.shape[:-1], n)
    arguments = (0, out.numel() // n, n, gate_and_up.data_ptr(), out.data_ptr())
    team.run(GATE.address, team.pack(arguments), team.threads_for(out.numel(), PARALLEL_NUMBERS // 4))
    return out


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`servelab.ops.rotary_embedding` for float32 x [T, H, D]; cos and sin [T, 1, D], contiguous."""
    T, H, D = x.shape
    if x.stride(2) != 1 or x.stride(1) != D:
        x = x.contiguous()
    out = x.new_empty(T, H, D)
    arguments = (0, T, H, D, x.data_ptr(), x.stride(0) * 4, cos.data_ptr(), sin.data_ptr(), out.data_ptr())
    team.run(ROTATE.address, team.pack(arguments), team.threads_for(out.numel(), PARALLEL_NUMBERS))
    return out


@functools.cache
def float_bits(number: float) -> int:
    """The 32 bits of a float32 as an integer."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits
