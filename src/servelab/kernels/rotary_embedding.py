"""Rotary position embedding (RoPE): turn pairs of dimensions by an angle that grows with the position.

    (x_d, x_d+D/2)  ->  (x_d cos a - x_d+D/2 sin a,  x_d+D/2 cos a + x_d sin a)        a = position * frequency_d

After it the product of a query and a key depends on the distance of their positions alone. Dimension d is paired with
d + D/2 ("half-split", as in Hugging Face weights). One program turns one head of one token: D numbers in, D out, and
the cosines and sines of its token, which all heads share.

Bytes requested a head: 2 D e of x and out, 2 D e of cos and sin. FLOPs 3 D.

Paper: https://arxiv.org/abs/2104.09864 (RoFormer).
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, launch, next_power_of_2
from servelab.kernels.shape import check_floats


def rotary_embedding_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `rotary_embedding` returns, in plain PyTorch."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # [T, H, D]
    return x * cos + swapped * sin  # [T, H, D]


@triton.jit
def _rotary_embedding(
    x, cos, sin, out, token_stride, head_stride, num_heads, HALF: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, WIDTH)
    mask = dims < HALF
    row = x + token * token_stride + head * head_stride + dims
    table = token * 2 * HALF + dims
    target = out + (token * num_heads + head) * 2 * HALF + dims
    low = tl.load(row, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(row + HALF, mask=mask, other=0.0).to(tl.float32)
    # The first half of the sines carries the minus sign.
    low_cos, low_sin = tl.load(cos + table, mask=mask, other=0.0), tl.load(sin + table, mask=mask, other=0.0)
    high_cos = tl.load(cos + table + HALF, mask=mask, other=0.0)
    high_sin = tl.load(sin + table + HALF, mask=mask, other=0.0)
    tl.store(target, low * low_cos.to(tl.float32) + high * low_sin.to(tl.float32), mask=mask)
    tl.store(target + HALF, high * high_cos.to(tl.float32) + low * high_sin.to(tl.float32), mask=mask)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head of x [T, H, D] by the angles of its token; cos and sin [T, 1, D], of x's dtype, D even.

    The first half of sin carries the minus sign (`servelab.ops.rotary_tables` makes both). Returns [T, H, D] in x's
    dtype. Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for shapes or
    dtypes that do not fit.
    """
    if x.dim() != 3 or x.shape[2] % 2 or not x.shape[2] or not (cos.shape == sin.shape == (len(x), 1, x.shape[2])):
        raise ValueError(
            f"expected x [T, H, D] with an even D, cos and sin [T, 1, D], got {list(x.shape)}, {list(cos.shape)} and "
            f"{list(sin.shape)}"
        )
    check_floats(x=x, cos=cos, sin=sin)
    if not can_launch(x):
        return rotary_embedding_reference(x, cos, sin)
    x = x if x.stride(2) == 1 else x.contiguous()
    num_tokens, num_heads, head_dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(
        _rotary_embedding,
        (num_tokens, num_heads),
        x.device,
        *(x, cos.contiguous(), sin.contiguous(), out, x.stride(0), x.stride(1), num_heads),
        HALF=head_dim // 2,
        WIDTH=next_power_of_2(head_dim // 2),
        num_warps=1,
    )
    return out
