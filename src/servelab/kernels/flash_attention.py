r"""FlashAttention-2, forward: exact attention that never holds the matrix of scores.

Naive attention writes S = scale Q K^T, a number for each pair of query and key, to memory, and reads it back to
normalise it and again to weigh V: at 8,192 tokens 128 MiB a head in 16 bit, for inputs of 2 MiB (D = 128). What a
softmax needs to know of a row is two numbers, its maximum and its sum, and both can be kept up to date while the
scores come in. So one program computes ROWS queries of one head: it loads them once, walks over the keys in tiles of
COLUMNS, and keeps for every query the maximum m, the sum l, and the weighted values acc so far:

                keys 0 ...             Lk        of each tile:
              +-----+-----+-----+-----+           s   = scale q k^T          [ROWS, COLUMNS], in registers
      ROWS    |  1  |  2  |  3  |\    |           m'  = max(m, max s)
    queries   +-----+-----+-----+-----+           p   = exp(s - m')
                 ->    ->    ->  \  causal:       a   = exp(m - m')          what was summed, under the new maximum
                                    the end       l   = a l + sum p          acc = a acc + p v
    at the end    out = acc / l       lse = m + log l   (the log-sum-exp: enough to merge results, `merge_attention`)

Bytes requested a head, e bytes a number, Lq = Lk = N, not causal:  2 N D e  (q, out)  +  2 N D e ceil(N / ROWS)  (k, v)
plus 4 N for lse. A causal program stops at its last query: of k and v, sum over tiles i of min(Lk, Lk - Lq +
(i + 1) ROWS) rows. FLOPs 4 Lq Lk D a head, about half of that when causal: no fewer than the naive way.
The traffic still grows with N^2, ROWS times slower; the memory taken grows with N.

Papers: https://arxiv.org/abs/2205.14135 (FlashAttention), https://arxiv.org/abs/2307.08691 (FlashAttention-2: queries
outside, the division at the end), https://arxiv.org/abs/1805.02867 (the online softmax).
"""

import math

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, capability, ceil_div, launch, next_power_of_2
from servelab.kernels.shape import check_attention, check_starts

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))
MINUS_INFINITY = tl.constexpr(float("-inf"))


def flash_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    query_starts: Tensor | None = None,
    key_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `flash_attention` returns, through the whole matrix of scores, in float32."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    key_starts = query_starts if key_starts is None else key_starts
    queries = [0, len(q)] if query_starts is None else query_starts.tolist()
    keys = [0, len(k)] if key_starts is None else key_starts.tolist()
    for i in range(len(queries) - 1):
        mine, theirs = slice(queries[i], queries[i + 1]), slice(keys[i], keys[i + 1])
        some_q = q[mine].float().transpose(0, 1)  # [H, Lq, D]
        some_k = k[theirs].float().repeat_interleave(group, 1).transpose(0, 1)  # [H, Lk, D]
        some_v = v[theirs].float().repeat_interleave(group, 1).transpose(0, 1)  # [H, Lk, D]
        scores = some_q @ some_k.mT * scale  # [H, Lq, Lk]
        if causal:  # the last query sees the last key
            num_queries, num_keys = scores.shape[1:]
            seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
            scores = scores.masked_fill(~seen, float("-inf"))
        lse[mine] = scores.logsumexp(-1).T  # [Lq, H]; -inf for a query that sees nothing
        weights = (scores - lse[mine].T[..., None]).exp()  # [H, Lq, Lk]
        weights = weights.where(scores > float("-inf"), 0.0) if causal else weights
        out[mine] = (weights @ some_v).transpose(0, 1).to(out.dtype)  # [Lq, H, D]
    return out, lse


@triton.jit
def _flash_attention(
    q, k, v, out, lse,  # [Tq, H, D], [Tk, G, D], [Tk, G, D], [Tq, H, D], [Tq, H]
    query_starts, key_starts,  # [N + 1]: where each sequence begins, and where the last ends
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride, num_heads,
    scale,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,  # H / G; WIDTH: D, up to a power of 2
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    # Which queries are mine: tile `tile` of one head of one sequence.
    tile, head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    query_start = tl.load(query_starts + sequence)
    key_start = tl.load(key_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - query_start
    num_keys = tl.load(key_starts + sequence + 1) - key_start
    first = tile * ROWS
    if first >= num_queries:
        return

    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    dims = tl.arange(0, WIDTH)
    tokens = (query_start + rows).to(tl.int64)
    row_mask = (rows < num_queries)[:, None] & (dims < D)[None, :]
    q_tile = tl.load(
        q + tokens[:, None] * q_token_stride + head * q_head_stride + dims[None, :], mask=row_mask, other=0.0
    )
    k += key_start.to(tl.int64) * k_token_stride + (head // GROUP) * k_head_stride
    v += key_start.to(tl.int64) * v_token_stride + (head // GROUP) * v_head_stride

    # The last key that each row may see, and where the walk ends.
    last_seen = rows + num_keys - num_queries
    end = num_keys
    unmasked = num_keys // COLUMNS * COLUMNS
    if CAUSAL:
        first_sees = tl.maximum(first + num_keys - num_queries + 1, 0)
        end = tl.maximum(tl.minimum(num_keys, first + ROWS + num_keys - num_queries), 0)
        unmasked = tl.minimum(unmasked, first_sees // COLUMNS * COLUMNS)

    m = tl.full([ROWS], MINUS_INFINITY, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, unmasked, COLUMNS):  # tiles that all rows see whole
        m, l, acc = _add_tile(
            q_tile, k, v, m, l, acc, start + columns, end, last_seen, dims, k_token_stride, v_token_stride, scale,
            D, WIDTH, CAUSAL, False,
        )  # fmt: skip
    for start in range(unmasked, end, COLUMNS):  # the diagonal and the tail
        m, l, acc = _add_tile(
            q_tile, k, v, m, l, acc, start + columns, end, last_seen, dims, k_token_stride, v_token_stride, scale,
            D, WIDTH, CAUSAL, True,
        )  # fmt: skip

    # A row that saw nothing has l = 0: its result is 0, and its log-sum-exp minus infinity.
    l_or_one = tl.where(l == 0.0, 1.0, l)
    offsets = (tokens * num_heads + head)[:, None] * D + dims[None, :]
    tl.store(out + offsets, acc / l_or_one[:, None], mask=row_mask)
    row_lse = tl.where(l == 0.0, MINUS_INFINITY, (m + tl.log2(l_or_one)) * LN_2)
    tl.store(lse + tokens * num_heads + head, row_lse, mask=rows < num_queries)


@triton.jit
def _add_tile(
    q_tile, k, v, m, l, acc, columns, end, last_seen, dims, k_token_stride, v_token_stride, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys `columns` into m, l and acc. scale: with log2(e), so that powers of 2 do."""
    offsets = columns.to(tl.int64)[:, None]
    mask = (dims < D)[None, :]
    if MASKED:
        mask = mask & (columns < end)[:, None]
    k_tile = tl.load(k + offsets * k_token_stride + dims[None, :], mask=mask, other=0.0)
    v_tile = tl.load(v + offsets * v_token_stride + dims[None, :], mask=mask, other=0.0)
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
    if MASKED:
        seen = (columns < end)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= last_seen[:, None])
        s = tl.where(seen, s, MINUS_INFINITY)
    new_m = tl.maximum(m, tl.max(s, 1))
    # While a row has seen nothing its maximum is minus infinity, of which no difference can be taken.
    anchor = tl.where(new_m == MINUS_INFINITY, 0.0, new_m) if MASKED else new_m
    p = tl.exp2(s - anchor[:, None])
    rescale = tl.exp2(m - anchor)
    l = rescale * l + tl.sum(p, 1)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * rescale[:, None], input_precision="ieee")
    return new_m, l, acc


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    query_starts: Tensor | None = None,
    key_starts: Tensor | None = None,
    max_query_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of packed sequences: q [Tq, H, D] to k and v [Tk, G, D], float32, float16 or bfloat16, D up to 256.

    H is a multiple of G: query head h reads KV head h // (H / G). causal: the last query of a sequence sees its last
    key, each earlier one key less. scale: of the scores, by default 1 / sqrt(D).
    query_starts, key_starts: int32 [N + 1], where each of N sequences begins in q and in k, and where the last ends;
    by default one sequence; key_starts by default query_starts. max_query_length: of a sequence, if it is known: else a
    GPU is waited for.

    Returns out [Tq, H, D] in q's dtype, and lse [Tq, H] float32, the natural log-sum-exp of each row of scaled scores.
    A query that sees no key has out 0 and lse minus infinity.
    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for shapes, dtypes,
    devices or starts that do not fit together.
    """
    check_attention(q, k, v)
    if query_starts is None and key_starts is not None:
        raise ValueError("expected query_starts where there are key_starts, got key_starts alone")
    key_starts = query_starts if key_starts is None else key_starts
    check_starts(query_starts, key_starts, q, k)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if not can_launch(q):
        return flash_attention_reference(
            q, k, v, causal=causal, scale=scale, query_starts=query_starts, key_starts=key_starts
        )
    if query_starts is None or key_starts is None:
        query_starts, key_starts = (
            torch.tensor([0, len(x)], dtype=torch.int32, device=q.device) for x in (q, k)
        )  # fmt: skip
        max_query_length = len(q)
    elif max_query_length is None:
        max_query_length = int(query_starts.diff().max())
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    num_tokens, num_heads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device)
    rows, columns, warps, stages = tile_size(head_dim, q.dtype, capability(q.device))
    launch(
        _flash_attention,
        (ceil_div(max_query_length, rows), num_heads, len(query_starts) - 1),
        q.device,
        *(q, k, v, out, lse, query_starts, key_starts),
        *(q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), num_heads),
        scale * math.log2(math.e),
        GROUP=num_heads // k.shape[1],
        D=head_dim,
        WIDTH=max(16, next_power_of_2(head_dim)),
        ROWS=rows,
        COLUMNS=columns,
        CAUSAL=causal,
        num_warps=warps,
        num_stages=stages,
    )
    return out, lse


def tile_size(head_dim: int, dtype: torch.dtype, capability: int) -> tuple[int, int, int, int]:
    """ROWS, COLUMNS, num_warps and num_stages, so that q, k and v fit the shared memory of each GPU.

    Chosen by what the compiler reports (`servelab.kernels.inspect.resources`); no GPU has timed them yet.
    """
    if capability < 80 and head_dim > 128:  # 64 KiB of shared memory
        return 16, 16, 4, 1
    if dtype == torch.float32:
        return (32, 32, 4, 1) if head_dim > 128 else (64, 32, 4, 1)
    if capability < 80:  # no asynchronous copies either
        return (32, 32, 8, 1) if head_dim > 64 else (64, 32, 8, 1)
    if head_dim > 128:
        return 64, 32, 8, 2
    if head_dim > 64 and capability not in (90, 100):  # these read operands from shared memory, not registers
        return 128, 32, 8, 3
    return 128, 64, 8, 3
