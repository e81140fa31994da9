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
from servelab.ops.compiled.kernel import ANY_ORDER, FAST_MATH, Kernel
from servelab.ops.compiled.vector import as_floats, exp2, take_next

# Numbers for which a second thread pays: below it, waking one takes longer than the work.
PARALLEL_NUMBERS = 16 * 1024
LOG2_E = np.float32(1.4426950408889634)


@njit(fastmath=ANY_ORDER)
def sum_of_squares(x: Any) -> Any:
    total = np.float32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


@njit(fastmath=FAST_MATH)
def normalise(x: Any, weight: Any, eps: Any, n: Any, out: Any) -> None:
    """RMSNorm of n floats at the address x; eps: the bits of a float32. `out` may be x."""
    numbers, scales, target = carray(as_floats(x), n), carray(as_floats(weight), n), carray(as_floats(out), n)
    factor = np.float32(1.0) / np.sqrt(sum_of_squares(numbers) / np.float32(n) + np.uint32(eps).view(np.float32))
    for i in range(n):
        target[i] = numbers[i] * factor * scales[i]


@njit(fastmath=FAST_MATH)
def gate(gates: Any, ups: Any, n: Any, out: Any) -> None:
    """``silu(gate) * up`` of n floats at each address."""
    left, right, target = carray(as_floats(gates), n), carray(as_floats(ups), n), carray(as_floats(out), n)
    for i in range(n):
        target[i] = left[i] / (np.float32(1.0) + exp2(-left[i] * LOG2_E)) * right[i]


@njit(fastmath=FAST_MATH)
def rotate(x: Any, cos: Any, sin: Any, heads: Any, D: Any, out: Any) -> None:
    """Turn the pairs (d, d + D / 2) of `heads` vectors of D floats that lie behind each other. `out` may be x."""
    half = D // 2
    source, target = carray(as_floats(x), (heads, D)), carray(as_floats(out), (heads, D))
    cosines, sines = carray(as_floats(cos), D), carray(as_floats(sin), D)
    for head in range(heads):
        for d in range(half):
            first, second = source[head, d], source[head, d + half]
            target[head, d] = first * cosines[d] + second * sines[d]
            target[head, d + half] = second * cosines[d + half] + first * sines[d + half]


def normalise_rows(arguments: Any) -> None:
    """arguments: counter, rows, n, x [rows, n], weight [n], out [rows, n], eps."""
    rows, n = arguments[1], arguments[2]
    while True:
        row = take_next(arguments, 0)
        if row >= rows:
            break
        normalise(arguments[3] + row * n * 4, arguments[4], arguments[6], n, arguments[5] + row * n * 4)


def gate_rows(arguments: Any) -> None:
    """arguments: counter, rows, n, gate and up [rows, 2n], out [rows, n]."""
    rows, n = arguments[1], arguments[2]
    while True:
        row = take_next(arguments, 0)
        if row >= rows:
            break
        gates = arguments[3] + row * n * 8
        gate(gates, gates + n * 4, n, arguments[4] + row * n * 4)


def rotate_rows(arguments: Any) -> None:
    """arguments: counter, rows, heads, D, x [rows, heads, D] and its bytes a row, cos and sin [rows, D], out."""
    rows, heads, D = arguments[1], arguments[2], arguments[3]
    while True:
        row = take_next(arguments, 0)
        if row >= rows:
            break
        cos, sin = arguments[6] + row * D * 4, arguments[7] + row * D * 4
        rotate(arguments[4] + row * arguments[5], cos, sin, heads, D, arguments[8] + row * heads * D * 4)


NORMALISE, GATE, ROTATE = Kernel(normalise_rows), Kernel(gate_rows), Kernel(rotate_rows)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`servelab.ops.rms_norm` for float32 x [..., n]."""
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.shape[-1]
    arguments = (0, x.numel() // n, n, x.data_ptr(), weight.data_ptr(), out.data_ptr(), float_bits(eps))
    team.run(NORMALISE, team.pack(arguments), team.threads_for(x.numel(), PARALLEL_NUMBERS))
    return out


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """`servelab.ops.silu_and_mul` for float32 [..., 2n]."""
    gate_and_up = gate_and_up.contiguous()
    n = gate_and_up.shape[-1] // 2
    out = gate_and_up.new_empty(*gate_and_up.shape[:-1], n)
    arguments = (0, out.numel() // n, n, gate_and_up.data_ptr(), out.data_ptr())
    team.run(GATE, team.pack(arguments), team.threads_for(out.numel(), PARALLEL_NUMBERS // 4))
    return out


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`servelab.ops.rotary_embedding` for float32 x [T, H, D]; cos and sin [T, 1, D], contiguous."""
    T, H, D = x.shape
    if x.stride(2) != 1 or x.stride(1) != D:
        x = x.contiguous()
    out = x.new_empty(T, H, D)
    arguments = (0, T, H, D, x.data_ptr(), x.stride(0) * 4, cos.data_ptr(), sin.data_ptr(), out.data_ptr())
    team.run(ROTATE, team.pack(arguments), team.threads_for(out.numel(), PARALLEL_NUMBERS))
    return out


@functools.cache
def float_bits(number: float) -> int:
    """The 32 bits of a float32 as an integer."""
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits
