"""Attention against a loop over single tokens in float64, with NaN in every slot that nobody uses."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from servelab.ops import AttentionBatch, CachedAttention, PackedCausalAttention

TOLERANCE = 2e-5  # float32 sums of at most 300 terms near 1
# H, G, D: the real model, MHA, MQA, and head dims that are no power of two [triton#621]
SHAPES = [(9, 3, 64), (4, 4, 16), (4, 1, 40), (2, 2, 1), (6, 2, 59), (3, 3, 80), (2, 1, 96), (8, 2, 111), (14, 2, 128)]

MIXES = {
    "decodes of different lengths": [(1, 9), (1, 1), (1, 200), (1, 8), (1, 13)],
    "decodes of one length": [(1, 12), (1, 12), (1, 12)],
    "whole prefills": [(7, 7), (2, 2), (1, 1)],
    "chunks with earlier context": [(2, 5), (3, 17), (8, 9)],
    "verification of drafts": [(5, 30), (5, 5), (2, 300), (9, 260)],
    "everything": [(1, 30), (5, 5), (1, 3), (3, 11), (1, 29), (4, 4), (40, 70)],
}

pytestmark = pytest.mark.usefixtures("cpu_backend")


class OpCount(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm", ["auto", "naive", "flash"])
@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("head_dim", [8, 32])  # 32 fills whole vectors: read where it lies
@pytest.mark.parametrize("lengths", MIXES.values(), ids=MIXES)
def test_any_mix_equals_the_reference(make_case, lengths, head_dim, block_size, paged, algorithm):
    case = make_case(lengths, (4, 2, head_dim), block_size, paged)
    torch.testing.assert_close(case.run(algorithm).double(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("algorithm", ["auto", "naive"])
@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_heads_equal_the_reference(make_case, shape, paged, algorithm):
    case = make_case(MIXES["everything"], shape, paged=paged)
    torch.testing.assert_close(case.run(algorithm).double(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"last": lambda row, Lq, S: min(row, S - 1)},  # aligned to the start
        {"last": lambda row, Lq, S: S - 1},  # not causal
        {"last": lambda row, Lq, S: max(S - Lq + row - 1, 0)},  # a token does not see itself
        {"head": lambda h, H, G: h % G},  # query heads dealt out in turn
    ],
    ids=["aligned to the start", "not causal", "off by one", "heads in turn"],
)
@pytest.mark.parametrize("head_dim", [8, 32])
@pytest.mark.parametrize("lengths", [[(2, 5)], [(5, 290)], [(40, 70)]], ids=["few", "verification", "prefill"])
def test_a_wrong_mask_or_head_would_show(make_case, wrong, lengths, head_dim):
    case = make_case(lengths, (4, 2, head_dim))
    assert (case.run().double() - case.expected(**wrong)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("algorithm", ["auto", "naive"])
def test_mask_is_aligned_to_the_end(make_case, algorithm):
    """2 queries, 5 keys: rows 11110 and 11111 [flash-attention#517]. V is one-hot, so the output is the weights."""
    case = make_case([(2, 5)], (1, 1, 5))
    case.q, case.k, case.v = [torch.zeros(2, 1, 5)], [torch.zeros(5, 1, 5)], [torch.eye(5)[:, None]]
    case.store(case.slots[0][:3], case.k[0][:3], case.v[0][:3], 1)
    torch.testing.assert_close(case.run(algorithm)[:, 0], torch.tensor([[0.25] * 4 + [0.0], [0.2] * 5]))


def test_writes_its_own_slots_of_its_own_layer_only(make_case):
    case = make_case(MIXES["everything"], (4, 2, 8))
    before = case.storage.pool.clone()
    case.run(layer=1)
    assert torch.equal(before[0].nan_to_num(9.0), case.storage.pool[0].nan_to_num(9.0))
    changed = (before[1].nan_to_num(9.0) != case.storage.pool[1].nan_to_num(9.0)).flatten(0, 1).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == sorted(case.batch.slot_mapping)
    for own, k in zip(case.slots, case.k, strict=True):
        assert torch.equal(case.storage.keys(1).flatten(0, 1)[own], k)


def test_slot_minus_one_is_not_written(make_case):
    """The last token of a prompt that is stored already is computed again without touching its block."""
    case = make_case([(1, 6), (2, 4)], (4, 2, 8))
    expected = case.run()
    stored = case.storage.pool.clone()
    slots = [-1, -1, case.batch.slot_mapping[2]]
    batch = AttentionBatch([1, 2], [6, 4], slots, case.batch.block_tables, block_size=4)
    skipped_k = case.new(case.k)
    skipped_k[:2] = 99.0
    out = CachedAttention(batch, case.storage)(1, torch.cat(case.q), skipped_k, case.new(case.v))
    assert torch.equal(out, expected)
    assert torch.equal(stored.nan_to_num(9.0), case.storage.pool.nan_to_num(9.0))


def test_queries_keys_and_values_may_be_views(make_case):
    """As the network hands them over: parts of the rows of one projection."""
    case = make_case(MIXES["everything"], (4, 2, 8))
    expected = case.run()
    q, k, v = torch.cat(case.q), case.new(case.k), case.new(case.v)
    together = torch.cat((q, k, v), dim=1)
    attention = CachedAttention(case.batch, case.storage)
    assert torch.equal(attention(1, *together.split((4, 2, 2), dim=1)), expected)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    assert torch.equal(attention(1, *strided), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_queries_give_16_bit_results(make_case, dtype):
    case = make_case(MIXES["everything"], (4, 2, 8), dtype=dtype)
    case.q, case.k, case.v = ([x.to(dtype) for x in part] for part in (case.q, case.k, case.v))
    out = case.run()
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=2.0**-6)  # values near 1, rounded twice


def test_contiguous_ranges_are_read_as_views(make_case):
    case = make_case(MIXES["everything"], (4, 2, 8), paged=False)
    with OpCount() as count:
        case.run()
    assert count.names["index_select"] == 0
    assert count.names["clone"] <= 2 * len(case.lengths)  # layouts of q and of the result, never of K and V


def test_decodes_of_similar_length_are_computed_together(make_case, cpu_backend):
    """In PyTorch: K and V of two groups, 16 short ones and the long one alone. A kernel gathers nothing."""
    case = make_case([(1, 100 - i) for i in range(16)] + [(1, 900)], (3, 1, 4))
    with OpCount() as count:
        case.run()
    assert count.names["index_select"] == (4 if cpu_backend == "plain" else 0)


@pytest.mark.parametrize("lengths", [[5], [1, 4, 2]])
def test_packed_sequences_do_not_see_each_other(attention_reference, lengths):
    torch.manual_seed(0)
    q, k, v = torch.randn(sum(lengths), 4, 8), torch.randn(sum(lengths), 2, 8), torch.randn(sum(lengths), 2, 8)
    out = PackedCausalAttention(lengths)(0, q, k, v)
    parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    expected = torch.cat([attention_reference(*part) for part in parts])
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE)


def test_bad_shapes_are_refused(make_case):
    case = make_case([(1, 3)], (4, 2, 8))
    attention = CachedAttention(case.batch, case.storage)
    q, kv = torch.zeros(1, 4, 8), torch.zeros(1, 2, 8)
    with pytest.raises(ValueError, match="got 4 query heads and 3 KV heads"):  # [fla#1029]
        attention(0, q, torch.zeros(1, 3, 8), torch.zeros(1, 3, 8))
    with pytest.raises(ValueError, match=r"q \[T, H, D\] and k, v \[T, G, D\]"):
        attention(0, q, kv, torch.zeros(2, 2, 8))
    with pytest.raises(
        ValueError, match=r"the 1 query tokens of the batch and \[G, D\] = \[2, 8\] .* got 2 and \[2, 8\]"
    ):
        attention(0, torch.zeros(2, 4, 8), torch.zeros(2, 2, 8), torch.zeros(2, 2, 8))
    with pytest.raises(ValueError, match=r"\[G, D\] = \[2, 8\] of the cache, got 1 and \[1, 8\]"):
        attention(0, q, torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
    with pytest.raises(ValueError, match="expected 3 packed tokens, got 1"):
        PackedCausalAttention([3])(0, q, kv, kv)
    with pytest.raises(ValueError, match="at least 1, got \\[\\]"):
        PackedCausalAttention([])
    with pytest.raises(ValueError, match=r"expected algorithm in \('auto', 'naive', 'flash'\), got 'fast'"):
        CachedAttention(case.batch, case.storage, algorithm="fast")
    with pytest.raises(ValueError, match="blocks of 1 slots, got 4"):
        CachedAttention(AttentionBatch([1], [1], [0], [[0]]), case.storage)


@pytest.mark.parametrize(
    "batch",
    [
        AttentionBatch([1], [3], [2], [[6]], block_size=4),
        AttentionBatch([1], [3], [2], [[-1]], block_size=4),
        AttentionBatch([1], [3], [24], [[0]], block_size=4),
        AttentionBatch([1], [3], [2], starts=[22], block_size=4),
        AttentionBatch([1], [3], [2], starts=[-1], block_size=4),
    ],
)
def test_slots_outside_the_storage_are_refused(make_case, batch):
    case = make_case([(1, 9)], (4, 2, 8))
    assert case.storage.pool.shape[1:3] == (6, 4)
    with pytest.raises(ValueError, match=r"expected slots in 0\.\.23, got"):
        CachedAttention(batch, case.storage)
