"""Attention written out once more, in float64 and row by row, so that a reference is not compared with itself."""

import math

import torch
from torch import Tensor


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = True, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """q [Lq, H, D], k and v [Lk, G, D] -> out [Lq, H, D] and lse [Lq, H], float64."""
    (num_queries, num_heads, head_dim), (num_keys, num_kv_heads, _) = q.shape, k.shape
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(num_queries, num_heads, head_dim, dtype=torch.float64)
    lse = torch.full((num_queries, num_heads), -math.inf, dtype=torch.float64)
    for i in range(num_queries):
        seen = min(num_keys, num_keys - num_queries + i + 1) if causal else num_keys
        for h in range(num_heads if seen > 0 else 0):
            g = h * num_kv_heads // num_heads
            scores = (k[:seen, g] * q[i, h]).sum(1) * scale
            weights = (scores - scores.max()).exp()
            out[i, h] = (weights[:, None] * v[:seen, g]).sum(0) / weights.sum()
            lse[i, h] = scores.max() + weights.sum().log()
    return out, lse


def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, scale: float | None = None) -> Tensor:
    """The same in PyTorch's own operations, scores, weights and sums in the inputs' dtype."""
    group, (num_queries, _, head_dim), num_keys = q.shape[1] // k.shape[1], q.shape, len(k)
    q, k, v = (
        q.transpose(0, 1),
        k.repeat_interleave(group, 1).transpose(0, 1),
        v.repeat_interleave(group, 1).transpose(0, 1),
    )
    scores = q @ k.mT * (1 / math.sqrt(head_dim) if scale is None else scale)
    if causal:
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        scores = scores.masked_fill(~seen, -math.inf)
    return (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(0, 1)
