"""Attention in tiles: the heart of `flash_attention`, with nothing around it.

One program owns ROWS queries of one head. Keys and values pass by in tiles of COLUMNS; the scores of a tile live in
registers and are gone when the next one comes. The online softmax makes the result exact all the same.

              keys:  COLUMNS  COLUMNS  COLUMNS ...
            +---------+---------+---------+
    ROWS    |  s, p   |    .    |    .    |      acc [ROWS, D], m [ROWS], l [ROWS] stay with the program
            +---------+---------+---------+
    next ROWS: another program, and all keys and values once more

Bytes requested a head, e a number:  2 N D e  (q and out)  +  2 N D e ceil(N / rows)  (k and v, once a tile of queries).
At N = 1,024, D = 64, 16 bit: 4.25 MiB with 64 rows, 2.25 MiB with 128, against 8.5 MiB of `naive_attention`.
FLOPs 4 N^2 D, as before.

Step 3 of 4 on the way to `flash_attention`, which adds: causal masks and stopping early, shared heads, packed
sequences, any head dimension, the log-sum-exp.

Papers: https://arxiv.org/abs/2205.14135 (FlashAttention, algorithm 1), with the order of loops of
https://arxiv.org/abs/2307.08691 (FlashAttention-2).
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, ceil_div, launch
from servelab.kernels.naive_attention import naive_attention_reference
from servelab.kernels.shape import check_same_heads


def tiled_attention_reference(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """What `tiled_attention` returns: what `naive_attention` returns."""
    return naive_attention_reference(q, k, v, scale=scale)


@triton.jit
def _tiled_attention(
    q, k, v, out, num_queries, num_keys, num_heads, scale, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    dims = tl.arange(0, D)
    places = (rows[:, None] * num_heads + head) * D + dims[None, :]
    q_tile = tl.load(q + places, mask=(rows < num_queries)[:, None], other=0.0)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, num_keys, COLUMNS):
        columns = (start + tl.arange(0, COLUMNS)).to(tl.int64)
        kv_places = (columns[:, None] * num_heads + head) * D + dims[None, :]
        k_tile = tl.load(k + kv_places, mask=(columns < num_keys)[:, None], other=0.0)
        v_tile = tl.load(v + kv_places, mask=(columns < num_keys)[:, None], other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        s = tl.where((columns < num_keys)[None, :], s, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - new_m[:, None])
        rescale = tl.exp(m - new_m)
        l = rescale * l + tl.sum(p, 1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, rescale[:, None] * acc, input_precision="ieee")
        m = new_m
    tl.store(out + places, acc / l[:, None], mask=(rows < num_queries)[:, None])


def tiled_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, rows: int = 64, columns: int = 32
) -> Tensor:
    """Attention, not causal, of q [Lq, H, D] to k and v [Lk, H, D]; Lk at least 1.

    float32, float16 or bfloat16; D, rows and columns (of a tile) powers of 2 from 16 on, D up to 256. scale: of the
    scores, by default 1 / sqrt(D). Returns [Lq, H, D]. Runs on a GPU or in Triton's interpreter; elsewhere the
    reference computes. Raises ValueError for shapes, dtypes or sizes that do not fit.
    """
    check_same_heads(q, k, v)
    if not len(k):
        raise ValueError("expected at least one key, got none")
    for name, size in (("the head dimension", q.shape[2]), ("rows", rows), ("columns", columns)):
        if size < 16 or size & (size - 1):
            raise ValueError(f"expected {name} as a power of 2 from 16 on, got {size}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if not can_launch(q):
        return tiled_attention_reference(q, k, v, scale=scale)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    num_queries, num_heads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launch(
        _tiled_attention,
        (ceil_div(num_queries, rows), num_heads),
        q.device,
        *(q, k, v, out, num_queries, len(k), num_heads, scale),
        D=head_dim,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=8,
        num_stages=1,
    )
    return out
