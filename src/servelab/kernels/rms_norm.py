"""RMSNorm: scale a vector to root mean square 1, then by a learned weight.

    y = x / sqrt(mean(x^2) + eps) * weight

One program takes one vector of N numbers, holds it in registers, and so reads it once; as separate PyTorch operations
the vector travels four times. Bytes requested a vector: 2 N e, and N e of the weight. FLOPs about 4 N: it is the memory
that it waits for.

In 16 bit the normalised vector is rounded before it meets the weight, as the models were trained.

Paper: https://arxiv.org/abs/1910.07467 (Root Mean Square Layer Normalization).
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, launch, next_power_of_2
from servelab.kernels.shape import check_floats

MAX_SIZE = 65536  # of a vector: it has to fit the registers of one program


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What `rms_norm` returns, in plain PyTorch."""
    x32 = x.float()  # [..., N]
    normalised = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)  # [..., N]
    return normalised.to(x.dtype) * weight  # [..., N]


@triton.jit
def _rms_norm(x, weight, out, row_stride, eps, N: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    mask = places < N
    stored = tl.load(x + row * row_stride + places, mask=mask, other=0.0)
    numbers = stored.to(tl.float32)
    normalised = numbers * tl.rsqrt(tl.sum(numbers * numbers, 0) / N + eps)
    scaled = normalised.to(stored.dtype).to(tl.float32) * tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * N + places, scaled, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise x [..., N] and scale it by weight [N]; both of one dtype, float32, float16 or bfloat16.

    The mean is taken in float32. Returns [..., N] in x's dtype. Runs on a GPU or in Triton's interpreter; elsewhere
    the reference computes. Raises ValueError for shapes or dtypes that do not fit.
    """
    if x.dim() < 1 or weight.shape != x.shape[-1:] or not 1 <= len(weight) <= MAX_SIZE:
        raise ValueError(
            f"expected x [..., N] and weight [N], N of 1 to {MAX_SIZE}, got {list(x.shape)} and {list(weight.shape)}"
        )
    check_floats(x=x, weight=weight)
    if not can_launch(x):
        return rms_norm_reference(x, weight, eps)
    size = len(weight)
    rows = x.reshape(-1, size)
    rows = rows if rows.stride(1) == 1 or size == 1 else rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = next_power_of_2(size)
    launch(
        _rms_norm,
        (len(rows),),
        x.device,
        *(rows, weight.contiguous(), out, rows.stride(0), eps),
        N=size,
        WIDTH=width,
        num_warps=min(16, max(1, width // 512)),
    )
    return out
