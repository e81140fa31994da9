"""Merge attention over parts of a context into attention over the whole.

Each part i of the keys gave a result out_i and the log-sum-exp lse_i of its scores. A softmax over all of them is
the parts' softmaxes, weighed by how much of the sum each part holds:

    lse = log sum_i exp(lse_i)        out = sum_i exp(lse_i - lse) out_i

It is the online softmax of `flash_attention` once more, for parts instead of tiles. Exact, and independent of order
but for rounding. It is used for Flash-Decoding's splits, and wherever one context was attended to in pieces (a shared
prefix and the rest; pieces on several GPUs).

One program: one token and head. It loads the S numbers lse_i, then S rows of D numbers.

    bytes requested  (S + 1) (4 D + 4) a token and head        FLOPs  about 2 S D

Paper: https://arxiv.org/abs/2112.05682 (Self-attention does not need O(n^2) memory), section 3.
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, launch, next_power_of_2


def merge_attention_reference(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """What `merge_attention` returns, in plain PyTorch."""
    lse = lses.logsumexp(0)  # [T, H]
    weights = (lses - lse).exp().where(lses > float("-inf"), 0.0)  # [S, T, H]; a part that saw nothing counts nothing
    parts = outs.float().where(weights[..., None] > 0, 0.0)  # [S, T, H, D]
    return (weights[..., None] * parts).sum(0).to(outs.dtype), lse


@triton.jit
def _merge_attention(
    outs, lses, out, lse,  # [S, T, H, D], [S, T, H], [T, H, D], [T, H]
    num_rows, num_parts, D: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,  # T * H; PARTS: S, to a power of 2
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS)
    dims = tl.arange(0, WIDTH)
    part_lses = tl.load(lses + parts * num_rows + row, mask=parts < num_parts, other=float("-inf"))
    m = tl.max(part_lses, 0)
    m = tl.where(m == float("-inf"), 0.0, m)
    l = tl.sum(tl.exp(part_lses - m), 0)
    acc = tl.zeros([WIDTH], tl.float32)
    for part in range(num_parts):
        part_row = part * num_rows + row
        weight = tl.exp(tl.load(lses + part_row) - m)
        if weight > 0.0:  # what a part that saw nothing left in its rows is not read
            part_out = tl.load(outs + part_row * D + dims, mask=dims < D, other=0.0)
            acc += weight * part_out.to(tl.float32)
    l_or_one = tl.where(l == 0.0, 1.0, l)
    tl.store(out + row * D + dims, acc / l_or_one, mask=dims < D)
    tl.store(lse + row, tl.where(l == 0.0, float("-inf"), m + tl.log(l_or_one)))


def merge_attention(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Merge S parts: outs [S, T, H, D] floating-point and lses [S, T, H] float32 -> out [T, H, D] and lse [T, H].

    out has outs' dtype. A part with lse minus infinity counts nothing, whatever its out holds; where all do, out is 0
    and lse minus infinity. Runs on a GPU or in Triton's interpreter; elsewhere the reference computes.
    Raises ValueError for shapes, dtypes or devices that do not fit.
    """
    if outs.dim() != 4 or lses.shape != outs.shape[:3] or not len(outs):
        raise ValueError(
            f"expected outs [S, T, H, D] with S of at least 1 and lses [S, T, H], got {list(outs.shape)} and "
            f"{list(lses.shape)}"
        )
    if not outs.is_floating_point() or lses.dtype != torch.float32 or outs.device != lses.device:
        raise ValueError(
            f"expected floating-point outs and float32 lses on one device, got {outs.dtype} on {outs.device} and "
            f"{lses.dtype} on {lses.device}"
        )
    if not can_launch(outs):
        return merge_attention_reference(outs, lses)
    outs, lses = outs.contiguous(), lses.contiguous()
    num_parts, num_tokens, num_heads, head_dim = outs.shape
    out = torch.empty(outs.shape[1:], dtype=outs.dtype, device=outs.device)
    lse = torch.empty(lses.shape[1:], dtype=torch.float32, device=outs.device)
    num_rows = num_tokens * num_heads
    launch(
        _merge_attention,
        (num_rows,),
        outs.device,
        *(outs, lses, out, lse, num_rows, num_parts),
        D=head_dim,
        WIDTH=next_power_of_2(head_dim),
        PARTS=next_power_of_2(num_parts),
        num_warps=1,
    )
    return out, lse
