"""PagedAttention: attention that reads keys and values through block tables, where they lie.

A paged cache holds a sequence's keys and values in blocks of `block_size` slots, anywhere. To gather them first and
attend then moves each number three times: read, written behind each other, read again. Here the kernel looks each
token's block up itself. It changes where numbers are read, not what is computed with them.

    context token j  ->  block = table[j // block_size],  slot = j % block_size  ->  keys[block, slot, g, :]

One program computes ROWS rows of one KV head g of one sequence: the H / G query heads that share g, of each of its
query tokens. One query token is a decode, k + 1 are the verification of k draft tokens, more are a chunk of a prefill;
to the kernel they are the same. Loaded once, keys and values serve all the rows:

    rows (token, head of g)       context of the sequence, in tiles of COLUMNS, by its table
      t0 h0                      +-----+-----+-----+-----+ - - +
      t0 h1                      |  5  |  0  |  9  |  2  |       split 0: tiles 0, 1    split 1: tiles 2, 3 ...
      t1 h0    sees one more     +-----+-----+-----+-----+ - - +
      t1 h1                            online softmax, as in `flash_attention`

Split-KV (Flash-Decoding): one decode has G programs, a GPU room for hundreds. So the context is split among
`num_splits` programs; each writes its own out and lse, and `merge_attention` weighs them together.

Quantized caches (`quantize_kv`): codes are read, one byte a number, and scales applied where they cost least: those of
keys to the scores, those of values to the weights (INT8, one a token and head) or to the result (FP8, one a head).

Bytes requested of the cache, a sequence with context S, one query token or a few:  2 S G (D e + scale bytes), however
many query heads share a KV head; with H / G programs instead it were H / G times that. FLOPs 4 S H D a query token:
with 16 bit and H = G one a byte, so a decode waits for memory, and H / G a byte with shared heads.

Papers: https://arxiv.org/abs/2309.06180 (PagedAttention), https://crfm.stanford.edu/2023/10/12/flashdecoding.html,
https://arxiv.org/abs/1911.02150 and https://arxiv.org/abs/2305.13245 (heads that share K and V: MQA, GQA).
"""

import math

import torch
from torch import Tensor

from servelab.kernels.flash_attention import LN_2, MINUS_INFINITY, flash_attention_reference
from servelab.kernels.language import tl, triton
from servelab.kernels.launch import MAX_REGISTERS, can_launch, capability, ceil_div, launch, next_power_of_2
from servelab.kernels.merge_attention import merge_attention
from servelab.kernels.number import decode
from servelab.kernels.quantize_kv import dequantize_kv_reference
from servelab.kernels.shape import check_cache, check_floats, check_head_dim, check_heads, check_indices

# Programs that a GPU is to have at least, by splits; each of them takes at least this many tokens of context.
PROGRAMS_A_PROCESSOR = 4
TOKENS_A_SPLIT = 256


def paged_attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor | None = None,
    *,
    scale: float | None = None,
    format: str = "auto",
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `paged_attention` returns: each sequence's keys and values gathered and dequantized, then attended to."""
    starts = list(range(len(q) + 1)) if query_starts is None else query_starts.tolist()
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for i, context in enumerate(context_lengths.tolist()):
        mine = slice(starts[i], starts[i + 1])
        blocks = block_tables[i, : ceil_div(context, keys.shape[1])].long()
        gathered = []
        for cache, scales in ((keys, key_scales), (values, value_scales)):
            rows = cache[blocks].flatten(0, 1)[:context]  # [S, G, D]
            if scales is not None:
                of_rows = scales[blocks].flatten(0, 1)[:context] if format == "int8" else scales  # [S, G] or [G]
                rows = dequantize_kv_reference(rows, of_rows[..., None], format)
            gathered.append(rows.float())
        k, v = gathered
        some, some_lse = flash_attention_reference(q[mine].float(), k, v, causal=True, scale=scale)
        out[mine], lse[mine] = some.to(q.dtype), some_lse
    return out, lse


@triton.jit
def find_slots(table, tokens, stored, BLOCK_SIZE: tl.constexpr):
    """Through the block table: where each context token lies, as its block and the slot in it."""
    block = tl.load(table + tokens // BLOCK_SIZE, mask=stored, other=0)
    return block.to(tl.int64), tokens % BLOCK_SIZE


@triton.jit
def _paged_attention(
    q, keys, values, key_scales, value_scales,  # [T, H, D], [P, B, G, D] twice; int8 [P, B, G], FP8 [G], else unused
    out, lse,  # [splits, T, H, D], [splits, T, H]
    block_tables, context_lengths, query_starts,  # [N, M], [N], [N + 1]
    q_token_stride, q_head_stride, table_stride,
    k_block_stride, k_slot_stride, k_head_stride, v_block_stride, v_slot_stride, v_head_stride,
    k_scale_block_stride, k_scale_slot_stride, v_scale_block_stride, v_scale_slot_stride,
    num_tokens, num_heads, split_tokens, scale,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORMAT: tl.constexpr, NATIVE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    # Which rows are mine: tile `tile` of the query tokens and heads of KV head g; which part of the context.
    sequence, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    g, split = tl.program_id(1), tl.program_id(2)
    query_start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - query_start
    context = tl.load(context_lengths + sequence)
    first = tile * ROWS
    if first >= num_queries * GROUP:
        return

    rows = first + tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    token = rows // GROUP
    head = g * GROUP + rows % GROUP
    mine = token < num_queries
    row_mask = mine[:, None] & (dims < D)[None, :]
    q_rows = (query_start + token).to(tl.int64) * q_token_stride + head.to(tl.int64) * q_head_stride
    q_tile = tl.load(q + q_rows[:, None] + dims[None, :], mask=row_mask, other=0.0)

    # The queries are the last tokens of the context; a row sees it up to itself. My split may begin after that.
    last_seen = context - num_queries + token
    last_token = tl.minimum((first + ROWS - 1) // GROUP, num_queries - 1)
    begin = split * split_tokens
    end = tl.minimum(context - num_queries + last_token + 1, begin + split_tokens)

    keys += g.to(tl.int64) * k_head_stride
    values += g.to(tl.int64) * v_head_stride
    if FORMAT == "fp8_e4m3" or FORMAT == "fp8_e5m2":
        scale *= tl.load(key_scales + g)

    m = tl.full([ROWS], MINUS_INFINITY, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(begin, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        stored = columns < end
        block, slot = find_slots(block_tables + sequence.to(tl.int64) * table_stride, columns, stored, BLOCK_SIZE)
        mask = stored[:, None] & (dims < D)[None, :]
        k_rows = block * k_block_stride + slot * k_slot_stride
        k_tile = tl.load(keys + k_rows[:, None] + dims[None, :], mask=mask, other=0)
        s = tl.dot(q_tile, tl.trans(decode(k_tile, FORMAT, NATIVE).to(q_tile.dtype)), input_precision="ieee") * scale
        if FORMAT == "int8":
            k_scale_rows = block * k_scale_block_stride + slot * k_scale_slot_stride + g
            s *= tl.load(key_scales + k_scale_rows, mask=stored, other=0.0).to(tl.float32)[None, :]
        s = tl.where(stored[None, :] & (columns[None, :] <= last_seen[:, None]), s, MINUS_INFINITY)

        new_m = tl.maximum(m, tl.max(s, 1))
        anchor = tl.where(new_m == MINUS_INFINITY, 0.0, new_m)
        p = tl.exp2(s - anchor[:, None])
        rescale = tl.exp2(m - anchor)
        l = rescale * l + tl.sum(p, 1)
        m = new_m

        v_rows = block * v_block_stride + slot * v_slot_stride
        v_tile = tl.load(values + v_rows[:, None] + dims[None, :], mask=mask, other=0)
        if FORMAT == "int8":
            v_scale_rows = block * v_scale_block_stride + slot * v_scale_slot_stride + g
            p *= tl.load(value_scales + v_scale_rows, mask=stored, other=0.0).to(tl.float32)[None, :]
        v_tile = decode(v_tile, FORMAT, NATIVE).to(q_tile.dtype)
        acc = tl.dot(p.to(q_tile.dtype), v_tile, acc * rescale[:, None], input_precision="ieee")

    if FORMAT == "fp8_e4m3" or FORMAT == "fp8_e5m2":
        acc *= tl.load(value_scales + g)
    l_or_one = tl.where(l == 0.0, 1.0, l)
    places = (split.to(tl.int64) * num_tokens + query_start + token) * num_heads + head
    tl.store(out + places[:, None] * D + dims[None, :], acc / l_or_one[:, None], mask=row_mask)
    row_lse = tl.where(l == 0.0, MINUS_INFINITY, (m + tl.log2(l_or_one)) * LN_2)
    tl.store(lse + places, row_lse, mask=mine)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor | None = None,
    *,
    scale: float | None = None,
    format: str = "auto",
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    num_splits: int | None = None,
    max_query_length: int | None = None,
    max_context_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of q [T, H, D] to a paged cache: keys and values [P, block_size, G, D].

    block_tables: int32 [N, M], for each of N sequences its blocks in order (beyond the last, anything).
    context_lengths: int32 [N], tokens of each that are stored; its queries are the last of them, and each sees the
    context up to itself. query_starts: int32 [N + 1], where each sequence's queries begin in q, and where the last
    end; by default one query a sequence. scale: of the scores, by default 1 / sqrt(D).
    format: "auto", the cache holds floating-point numbers; "int8" with scales [P, block_size, G] float16; "fp8_e4m3" or
    "fp8_e5m2" as uint8 with scales [G] float32.
    num_splits: parts of the context that are computed side by side; by default as many as fill the GPU.
    max_query_length, max_context_length: of a sequence, if they are known: else a GPU is waited for.

    Returns out [T, H, D] in q's dtype and lse [T, H] float32, the log-sum-exp of each row of scores.
    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for shapes, dtypes,
    devices or numbers that do not fit together.
    """
    if q.dim() != 3 or keys.dim() != 4 or keys.shape[3] != q.shape[2]:
        raise ValueError(
            f"expected q [T, H, D] and keys [P, block_size, G, D], got {list(q.shape)} and {list(keys.shape)}"
        )
    check_floats(q=q)
    check_cache(keys, values, format, key_scales, value_scales, q.device)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[2]
    check_heads(num_heads, num_kv_heads)
    check_head_dim(head_dim)
    check_indices("block_tables", block_tables, (None, None), q.device)
    num_sequences = len(block_tables)
    check_indices("context_lengths", context_lengths, (num_sequences,), q.device)
    if query_starts is None:
        if num_sequences != num_tokens:
            raise ValueError(
                f"expected query_starts, or one query a sequence, got {num_tokens} queries of {num_sequences} sequences"
            )
        query_starts, max_query_length = torch.arange(num_tokens + 1, dtype=torch.int32, device=q.device), 1
    check_indices("query_starts", query_starts, (num_sequences + 1,), q.device)
    if not q.is_cuda:
        check_contexts(query_starts, context_lengths, block_tables, num_tokens, keys)
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"expected num_splits of at least 1, got {num_splits}")
    scale = head_dim**-0.5 if scale is None else scale
    if not can_launch(q):
        return paged_attention_reference(
            q, keys, values, block_tables, context_lengths, query_starts,
            scale=scale, format=format, key_scales=key_scales, value_scales=value_scales,
        )  # fmt: skip
    if max_query_length is None:
        max_query_length = int(query_starts.diff().max()) if num_sequences else 0
    if max_context_length is None:
        max_context_length = int(context_lengths.max()) if num_sequences else 0

    group = num_heads // num_kv_heads
    rows, columns, warps, stages = tile_size(max_query_length * group, head_dim, q.dtype, capability(q.device))
    tiles = ceil_div(max_query_length * group, rows)
    if num_splits is None:
        num_splits = choose_splits(tiles * num_sequences * num_kv_heads, max_context_length, processors(q.device))
    split_tokens = max(1, ceil_div(ceil_div(max_context_length, num_splits), columns)) * columns
    q = q if q.stride(2) == 1 else q.contiguous()
    out_dtype = q.dtype if num_splits == 1 else torch.float32
    out = torch.empty((num_splits, *q.shape), dtype=out_dtype, device=q.device)
    lse = torch.empty((num_splits, num_tokens, num_heads), dtype=torch.float32, device=q.device)
    k_scales, v_scales = (
        (keys if key_scales is None else key_scales),
        (values if value_scales is None else value_scales),
    )
    launch(
        _paged_attention,
        (tiles * num_sequences, num_kv_heads, num_splits),
        q.device,
        *(q, keys, values, k_scales, v_scales, out, lse, block_tables, context_lengths, query_starts),
        *(q.stride(0), q.stride(1), block_tables.stride(0)),
        *keys.stride()[:3],
        *values.stride()[:3],
        *(k_scales.stride()[:2] if format == "int8" else (0, 0)),
        *(v_scales.stride()[:2] if format == "int8" else (0, 0)),
        *(num_tokens, num_heads, split_tokens),
        scale * math.log2(math.e),
        GROUP=group,
        D=head_dim,
        WIDTH=max(16, next_power_of_2(head_dim)),
        BLOCK_SIZE=keys.shape[1],
        ROWS=rows,
        COLUMNS=columns,
        FORMAT=format,
        NATIVE=capability(q.device) >= 89,
        TILES=max(1, tiles),
        num_warps=warps,
        num_stages=stages,
        maxnreg=MAX_REGISTERS,
    )
    if num_splits == 1:
        return out[0], lse[0]
    merged, merged_lse = merge_attention(out, lse)
    return merged.to(q.dtype), merged_lse


def check_contexts(
    query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, num_tokens: int, keys: Tensor
) -> None:
    """Raise ValueError unless starts rise from 0 to T, contexts hold their queries, and tables cover them with blocks
    that there are."""
    queries = query_starts.diff()
    if query_starts[0] != 0 or query_starts[-1] != num_tokens or (queries < 0).any():
        raise ValueError(f"expected query_starts to rise from 0 to {num_tokens}, got {query_starts.tolist()}")
    if (context_lengths < queries).any():
        raise ValueError(
            f"expected contexts that hold their queries, got {queries.tolist()} queries in {context_lengths.tolist()}"
        )
    num_blocks, block_size = keys.shape[:2]
    used = (context_lengths + block_size - 1) // block_size
    if (used > block_tables.shape[1]).any():
        raise ValueError(
            f"expected block tables that cover contexts of {context_lengths.tolist()} tokens, got "
            f"{block_tables.shape[1]} blocks of {block_size}"
        )
    named = block_tables[torch.arange(block_tables.shape[1], device=used.device) < used[:, None]]
    if ((named < 0) | (named >= num_blocks)).any():
        raise ValueError(f"expected blocks in 0..{num_blocks - 1}, got {int(named.min())}..{int(named.max())}")


def choose_splits(num_programs: int, max_context_length: int, num_processors: int) -> int:
    """As many parts of the context as give every processor of the GPU its programs, each with enough to do."""
    wanted = ceil_div(PROGRAMS_A_PROCESSOR * num_processors, max(1, num_programs))
    return max(1, min(wanted, max_context_length // TOKENS_A_SPLIT))


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 elsewhere."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def tile_size(num_rows: int, head_dim: int, dtype: torch.dtype, capability: int) -> tuple[int, int, int, int]:
    """ROWS, COLUMNS, num_warps and num_stages. Few rows (decode, verification) leave room for long tiles.

    Chosen by what the compiler reports (`servelab.kernels.inspect.resources`); no GPU has timed them yet.
    """
    rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    if capability < 80 and head_dim > 128:  # 64 KiB of shared memory
        return 16, 16, 4, 1
    if dtype == torch.float32:
        return min(rows, 32), 32, 4, 1
    if capability < 80:
        return min(rows, 32), 32, 8 if head_dim > 64 else 4, 1
    if head_dim > 128:
        return rows, 32, 8, 2
    if rows == 64 and head_dim <= 64 and capability in (89, 120):
        return rows, 32, 4, 3
    return rows, 64, 8 if rows == 64 and head_dim > 64 else 4, 3
