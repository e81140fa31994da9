"""Attention as it is written down: three kernels, and the matrix of scores in memory between them.

    S = scale Q K^T   [N, N] to memory        P = softmax(S)   there and back        O = P V   from memory

      Q      K^T            S                  P                V       O
    +---+  +-------+    +-------+          +-------+          +---+   +---+
    |   |  |       |    |       |  rows    |       |          |   |   |   |
    | D |  |   N   | -> | N x N |   ->     | N x N |    x     | D | = | D |
    |   |  +-------+    |       |          |       |          |   |   |   |
    +---+               +-------+          +-------+          +---+   +---+

Bytes a head, e a number: S is written, read, written as P and read again, 4 N^2 e; the inputs and the result are
4 N D e. At N = 1,024, D = 64 and 16 bit that is 8 MiB for 0.5 MiB. The tiles request some inputs again:
N D e (ceil(N / TILE) - 1) more of each of q, k and v. FLOPs 4 N^2 D.

Step 1 of 4 on the way to `flash_attention`: what is wrong.
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, ceil_div, launch, next_power_of_2
from servelab.kernels.shape import check_same_heads

TILE = 64
MAX_TOKENS = 16384  # a row of S has to fit the registers of one program


def naive_attention_reference(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """What `naive_attention` returns, in plain PyTorch."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [H, N, D]
    scores = (q @ k.mT).float() * scale  # [H, N, N]
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(0, 1)  # [N, H, D]


@triton.jit
def _scores(
    q, k, scores, num_queries, num_keys, num_heads, scale,  # [Lq, H, D], [Lk, H, D], [H, Lq, Lk]
    D: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    columns = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    dims = tl.arange(0, WIDTH)
    row_mask, column_mask = rows < num_queries, columns < num_keys
    q_places = (rows[:, None] * num_heads + head) * D + dims[None, :]
    k_places = (columns[:, None] * num_heads + head) * D + dims[None, :]
    q_tile = tl.load(q + q_places, mask=row_mask[:, None] & (dims < D)[None, :], other=0.0)
    k_tile = tl.load(k + k_places, mask=column_mask[:, None] & (dims < D)[None, :], other=0.0)
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
    places = (head * num_queries + rows[:, None]) * num_keys + columns[None, :]
    tl.store(scores + places, s, mask=row_mask[:, None] & column_mask[None, :])


@triton.jit
def _softmax(scores, num_keys, WIDTH: tl.constexpr):
    row = scores + tl.program_id(0).to(tl.int64) * num_keys
    columns = tl.arange(0, WIDTH)
    s = tl.load(row + columns, mask=columns < num_keys, other=float("-inf")).to(tl.float32)
    p = tl.exp(s - tl.max(s, 0))
    tl.store(row + columns, p / tl.sum(p, 0), mask=columns < num_keys)


@triton.jit
def _weigh(weights, v, out, num_queries, num_keys, num_heads, D: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)
    rows = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    dims = tl.arange(0, WIDTH)
    acc = tl.zeros([TILE, WIDTH], tl.float32)
    for start in range(0, num_keys, TILE):
        columns = (start + tl.arange(0, TILE)).to(tl.int64)
        seen = columns < num_keys
        p_places = (head * num_queries + rows[:, None]) * num_keys + columns[None, :]
        p = tl.load(weights + p_places, mask=(rows < num_queries)[:, None] & seen[None, :], other=0.0)
        v_places = (columns[:, None] * num_heads + head) * D + dims[None, :]
        v_tile = tl.load(v + v_places, mask=seen[:, None] & (dims < D)[None, :], other=0.0)
        acc = tl.dot(p, v_tile, acc, input_precision="ieee")
    places = (rows[:, None] * num_heads + head) * D + dims[None, :]
    tl.store(out + places, acc, mask=(rows < num_queries)[:, None] & (dims < D)[None, :])


def naive_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Attention, not causal, of q [Lq, H, D] to k and v [Lk, H, D], through the matrix of scores [H, Lq, Lk].

    float32, float16 or bfloat16, D up to 256, Lk of 1 to 16,384. scale: of the scores, by default 1 / sqrt(D).
    The scores are kept in the inputs' dtype. Returns [Lq, H, D]. Runs on a GPU or in Triton's interpreter; elsewhere
    the reference computes. Raises ValueError for shapes or dtypes that do not fit.
    """
    check_same_heads(q, k, v)
    if not 1 <= len(k) <= MAX_TOKENS:
        raise ValueError(f"expected 1 to {MAX_TOKENS} keys, got {len(k)}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if not can_launch(q):
        return naive_attention_reference(q, k, v, scale=scale)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    num_queries, num_heads, head_dim = q.shape
    num_keys = len(k)
    scores = torch.empty((num_heads, num_queries, num_keys), dtype=q.dtype, device=q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sizes = {"D": head_dim, "WIDTH": max(16, next_power_of_2(head_dim)), "TILE": TILE, "num_warps": 8, "num_stages": 1}
    tiles = ceil_div(num_queries, TILE)
    launch(
        _scores, (tiles, ceil_div(num_keys, TILE), num_heads), q.device,
        *(q, k, scores, num_queries, num_keys, num_heads, scale), **sizes,
    )  # fmt: skip
    width = next_power_of_2(num_keys)
    warps = min(16, max(1, width // 512))
    launch(_softmax, (num_heads * num_queries,), q.device, scores, num_keys, WIDTH=width, num_warps=warps)
    launch(_weigh, (tiles, num_heads), q.device, *(scores, v, out, num_queries, num_keys, num_heads), **sizes)
    return out
