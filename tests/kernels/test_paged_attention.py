"""`paged_attention`: equal to attention over what the blocks hold, wherever they lie, however the context is split."""

import itertools
import math

import pytest
import torch

from servelab.kernels import QUANTIZED_DTYPES, dequantize_kv, paged_attention, paged_attention_reference, quantize_kv
from servelab.kernels.paged_attention import choose_splits
from tests.kernels.conftest import assert_near, randn
from tests.kernels.oracle import attention, plain_attention

HALF, FULL = torch.float16, torch.float32


class Case:
    """A cache whose unused slots hold NaN (or the NaN code, or a NaN scale), with tables that name blocks in disorder.

    sequences: (query tokens, context) of each.
    """

    def __init__(self, sequences, num_heads=4, num_kv_heads=2, head_dim=16, block_size=4, format="auto", dtype=FULL):
        contexts = [context for _, context in sequences]
        blocks = [math.ceil(context / block_size) for context in contexts]
        num_blocks = sum(blocks) + 3
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5)).tolist()
        self.format, self.sequences = format, sequences
        self.starts = torch.tensor([0, *itertools.accumulate(queries for queries, _ in sequences)], dtype=torch.int32)
        self.contexts = torch.tensor(contexts, dtype=torch.int32)
        self.tables = torch.full((len(sequences), max(blocks) + 1), -7, dtype=torch.int32)
        self.q = randn(int(self.starts[-1]), num_heads, head_dim, seed=1, dtype=dtype)
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        self.k_scales = self.v_scales = None
        if format == "auto":
            self.keys, self.values = (torch.full(shape, math.nan, dtype=dtype) for _ in range(2))
        elif format == "int8":
            self.keys, self.values = (torch.full(shape, 111, dtype=torch.int8) for _ in range(2))
            self.k_scales, self.v_scales = (torch.full(shape[:3], math.nan, dtype=HALF) for _ in range(2))
        else:
            self.keys, self.values = (torch.full(shape, 0x7F, dtype=torch.uint8) for _ in range(2))
            self.k_scales, self.v_scales = torch.rand(num_kv_heads) + 0.01, torch.rand(num_kv_heads) + 0.01
        self.k, self.v = [], []  # what is stored, of each sequence, in float32 (or the dtype)
        for i, context in enumerate(contexts):
            table = [order.pop() for _ in range(blocks[i])]
            self.tables[i, : len(table)] = torch.tensor(table)
            for cache, scales, stored, seed in (
                (self.keys, self.k_scales, self.k, 2 + i),
                (self.values, self.v_scales, self.v, 50 + i),
            ):
                numbers = randn(context, num_kv_heads, head_dim, seed=seed, dtype=dtype)
                places = torch.arange(context)
                at = torch.tensor(table)[places // block_size], places % block_size
                if format == "auto":
                    cache[at] = numbers
                    stored.append(numbers)
                    continue
                codes, own = quantize_kv(numbers, format, None if format == "int8" else scales[:, None])
                cache[at] = codes
                if format == "int8":
                    scales[at] = own.squeeze(-1)
                stored.append(dequantize_kv(codes, own, format))

    @property
    def arguments(self):
        return self.q, self.keys, self.values, self.tables, self.contexts, self.starts

    @property
    def scales(self):
        return {"format": self.format, "key_scales": self.k_scales, "value_scales": self.v_scales}

    def check(self, out, lse):
        for i in range(len(self.sequences)):
            mine = slice(*self.starts[i : i + 2].tolist())
            q, k, v = self.q[mine], self.k[i], self.v[i]
            exact, exact_lse = attention(q, k, v)
            assert_near(out[mine], plain_attention(q, k.to(q.dtype), v.to(q.dtype)), exact)
            assert_near(lse[mine], exact_lse.float(), exact_lse)


def check(run, case, **kwargs):
    out, lse = run(paged_attention, *case.arguments, **case.scales, **kwargs).result
    case.check(out, lse)
    return out, lse


MIX = [(1, 9), (1, 4), (5, 5), (3, 8), (1, 1), (2, 39)]


@pytest.mark.parametrize("num_splits", [None, 1, 2, 5])
@pytest.mark.parametrize("format", ["auto", *QUANTIZED_DTYPES])
def test_decodes_chunks_and_verification_together(run, format, num_splits):
    """One kernel: a decode, a decode of whole blocks, a prefill, a chunk, the first token, drafts."""
    check(run, Case(MIX, format=format), num_splits=num_splits)


@pytest.mark.parametrize("format", ["auto", *QUANTIZED_DTYPES])
def test_in_float16(run, format):
    check(run, Case([(1, 40), (4, 33)], num_heads=6, head_dim=64, format=format, dtype=HALF))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 64])
@pytest.mark.parametrize("context", [1, 15, 16, 17, 32])
def test_any_block_size_and_contexts_that_fill_blocks(run, block_size, context):
    """A length divisible by the block size, and blocks of one slot [MinivLLM#87]."""
    check(run, Case([(1, context)], block_size=block_size))


@pytest.mark.parametrize("head_dim", [1, 40, 59, 80, 96, 111, 256])
@pytest.mark.parametrize("format", ["auto", "int8", "fp8_e4m3"])
def test_any_head_dim(run, head_dim, format):
    check(run, Case([(1, 7), (2, 2)], head_dim=head_dim, format=format))


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (3, 3), (9, 3), (8, 1), (40, 2)])
@pytest.mark.parametrize("queries", [1, 2, 9])
def test_rows_are_query_tokens_and_the_heads_that_share(run, num_heads, num_kv_heads, queries):
    """9 heads on 3: the rows of a tile end within a token; 40 on 2: one token fills more than a tile of 16."""
    check(run, Case([(queries, 20)], num_heads=num_heads, num_kv_heads=num_kv_heads))


def test_a_chunk_longer_than_a_tile_of_rows(run):
    check(run, Case([(70, 90), (1, 3)]))


def test_splits_that_begin_after_the_end_count_nothing(run):
    """Sequences of 1 and 90 tokens in 3 splits: of the short one, two are empty."""
    case = Case([(1, 1), (1, 90), (2, 33)])
    out, lse = check(run, case, num_splits=3)
    whole, whole_lse = check(run, case, num_splits=1)
    assert torch.allclose(out, whole, atol=1e-6)
    assert torch.allclose(lse, whole_lse, atol=1e-6)


def test_one_query_a_sequence_needs_no_starts(run):
    case = Case([(1, 9), (1, 4)])
    out, lse = run(paged_attention, *case.arguments[:5]).result
    case.check(out, lse)
    with pytest.raises(ValueError, match="query_starts, or one query a sequence, got 3 queries of 2 sequences"):
        paged_attention(torch.zeros(3, 4, 16), *case.arguments[1:5])


def test_caches_that_are_views(run):
    """K and V as halves of one tensor [P, 2, ...], as `cache.unbind(1)` gives them [aiter#3498]."""
    case = Case(MIX)
    cache = torch.stack((case.keys, case.values), dim=1)
    keys, values = cache.unbind(1)
    assert not keys.is_contiguous()
    out, lse = run(paged_attention, case.q, keys, values, *case.arguments[3:]).result
    case.check(out, lse)


def test_known_lengths_are_used(run):
    case = Case(MIX)
    out, lse = run(paged_attention, *case.arguments, max_query_length=5, max_context_length=39).result
    case.check(out, lse)
    out, lse = run(paged_attention, *case.arguments, max_query_length=60, max_context_length=400, num_splits=2).result
    case.check(out, lse)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 6), (6, 3), (6, 2), (6, 1)])
@pytest.mark.parametrize("format", ["auto", "int8", "fp8_e4m3"])
def test_requests_the_cache_once_for_all_heads_that_share_it(run, num_heads, num_kv_heads, format):
    """G / H times what as many KV heads as query heads would: the chapter's claim, in bytes."""
    case = Case([(1, 21), (1, 33)], num_heads=num_heads, num_kv_heads=num_kv_heads, format=format)
    record = run(paged_attention, *case.arguments, **case.scales, num_splits=1).record
    numbers = (21 + 33) * num_kv_heads * 16
    assert record.loaded_bytes("keys") == record.loaded_bytes("values") == numbers * (4 if format == "auto" else 1)
    if format == "int8":
        assert record.loaded_bytes("key_scales") == record.loaded_bytes("value_scales") == (21 + 33) * num_kv_heads * 2


def test_eight_bit_formats_halve_the_bytes_of_sixteen(run):
    loaded = {}
    for format in ("auto", "int8", "fp8_e4m3", "fp8_e5m2"):
        case = Case([(1, 64)], head_dim=64, format=format, dtype=HALF)
        record = run(paged_attention, *case.arguments, **case.scales).record
        names = ("keys", "values") if format != "int8" else ("keys", "values", "key_scales", "value_scales")
        loaded[format] = sum(record.loaded_bytes(name) for name in names)
    assert loaded["fp8_e4m3"] * 2 == loaded["fp8_e5m2"] * 2 == loaded["auto"]
    assert loaded["int8"] / loaded["auto"] == (64 + 2) / 128


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("context_lengths", [9, 0, 5], "contexts that hold their queries"),
        ("context_lengths", [9, 99, 5], "block tables that cover"),
        ("block_tables", [[0, 1, 2], [90, 1, 1], [1, 1, 1]], "blocks in 0..8"),
        ("query_starts", [0, 2, 1, 3], "rise from 0 to 3"),
        ("query_starts", [0, 1, 2], r"query_starts as int32 or int64 \[4\]"),
        ("keys", torch.zeros(9, 4, 2, 17), r"keys \[P, block_size, G, D\]"),
        ("values", torch.zeros(9, 4, 2, 15), "alike"),
        ("values", torch.zeros(9, 4, 2, 16, dtype=torch.int8), "values of format auto as"),
        ("format", "int4", "a format in"),
        ("format", "int8", "keys of format int8 as torch.int8"),
        ("key_scales", torch.ones(2), "key_scales of format auto: none"),
        ("num_splits", 0, "num_splits of at least 1, got 0"),
        ("q", torch.zeros(3, 3, 16), "got 3 query heads and 2 KV heads"),
        ("q", torch.zeros(3, 4, 16, dtype=torch.float64), "float32, float16 or bfloat16"),
    ],
)
def test_refuses_what_does_not_fit(name, value, message):
    arguments = {
        "q": torch.zeros(3, 4, 16),
        "keys": torch.zeros(9, 4, 2, 16),
        "values": torch.zeros(9, 4, 2, 16),
        "block_tables": [[0, 1, 2], [1, 2, 3], [3, 4, 5]],
        "context_lengths": [9, 4, 5],
        "query_starts": [0, 1, 2, 3],
    }
    arguments[name] = value
    arguments = {key: torch.tensor(item) if isinstance(item, list) else item for key, item in arguments.items()}
    with pytest.raises(ValueError, match=message):
        paged_attention(**arguments)


@pytest.mark.parametrize("format", QUANTIZED_DTYPES)
def test_refuses_scales_that_do_not_fit(format):
    case = Case([(1, 5)], format=format)
    for scales in ({"key_scales": None}, {"value_scales": case.v_scales.double()}, {"key_scales": case.k_scales[:1]}):
        with pytest.raises(ValueError, match="_scales of format"):
            paged_attention(*case.arguments, **{**case.scales, **scales})


@pytest.mark.parametrize("format", ["auto", *QUANTIZED_DTYPES])
def test_without_a_gpu_the_reference_answers_and_is_attention_written_out(format):
    case = Case(MIX, format=format)
    out, lse = paged_attention(*case.arguments, **case.scales)
    want, want_lse = paged_attention_reference(*case.arguments, **case.scales)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)
    case.check(out, lse)


def test_splits_fill_the_gpu_and_are_not_too_short():
    assert choose_splits(num_programs=8, max_context_length=100_000, num_processors=132) == 66
    assert choose_splits(num_programs=8, max_context_length=1_024, num_processors=132) == 4
    assert choose_splits(num_programs=512, max_context_length=100_000, num_processors=132) == 2
    assert choose_splits(num_programs=528, max_context_length=100_000, num_processors=132) == 1
    assert choose_splits(num_programs=1, max_context_length=10, num_processors=132) == 1
