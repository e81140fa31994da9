"""Attention against a loop over single tokens in float64, with NaN in every slot that nobody uses."""

import random
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from servelab.ops import AttentionBatch, CachedAttention, PackedCausalAttention

TOLERANCE = 2e-5  # float32 sums of at most 200 terms near 1
SHAPES = [(9, 3, 64), (4, 4, 16), (4, 1, 40), (2, 2, 1), (6, 2, 59)]  # H, G, D


class Storage:
    """A KV cache of NaN, keys and values as views of one tensor [L, P, block_size, 2, G, D]."""

    def __init__(self, num_blocks, block_size, G, D, dtype=torch.float32):
        self.pool = torch.full((2, num_blocks, block_size, 2, G, D), float("nan"), dtype=dtype)

    def keys(self, layer):
        return self.pool[layer, :, :, 0]

    def values(self, layer):
        return self.pool[layer, :, :, 1]


class OpCount(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def reference(q, k, v, last=lambda row, Lq, S: S - Lq + row, head=lambda h, H, G: h // (H // G)):
    """One query and one head at a time. `last` is the last key that a row sees, `head` the KV head of a query head."""
    (Lq, H, D), (S, G, _) = q.shape, k.shape
    out = torch.zeros(Lq, H, D, dtype=torch.float64)
    for row in range(Lq):
        for h in range(H):
            keys = k[: last(row, Lq, S) + 1, head(h, H, G)].double()
            values = v[: last(row, Lq, S) + 1, head(h, H, G)].double()
            out[row, h] = torch.softmax(keys @ q[row, h].double() / D**0.5, dim=0) @ values
    return out


class Case:
    """Sequences of random lengths in a shuffled pool; what each had stored before the step is in its slots."""

    def __init__(self, lengths, shape, block_size=4, paged=True, seed=0):
        H, G, D = shape
        torch.manual_seed(seed)
        self.lengths = lengths
        blocks = [-(-context // block_size) for _, context in lengths]
        spare = 3
        order = list(range(sum(blocks) + spare))
        random.Random(seed).shuffle(order)
        self.storage = Storage(len(order), block_size, G, D)
        self.k = [torch.randn(context, G, D) for _, context in lengths]
        self.v = [torch.randn(context, G, D) for _, context in lengths]
        self.q = [torch.randn(query, H, D) for query, _ in lengths]
        tables, slots, used = [], [], 0
        for count, (_, context) in zip(blocks, lengths, strict=True):
            tables.append(order[used : used + count] if paged else list(range(used, used + count)))
            used += count
            slots.append([tables[-1][t // block_size] * block_size + t % block_size for t in range(context)])
        self.slots = slots
        for (query, context), own, k, v in zip(lengths, slots, self.k, self.v, strict=True):
            for layer in (0, 1):
                for token in range(context - query):
                    self.storage.keys(layer).flatten(0, 1)[own[token]] = k[token]
                    self.storage.values(layer).flatten(0, 1)[own[token]] = v[token]
        self.batch = AttentionBatch(
            [query for query, _ in lengths],
            [context for _, context in lengths],
            [slot for (query, context), own in zip(lengths, slots, strict=True) for slot in own[context - query :]],
            block_tables=tables if paged else None,
            starts=None if paged else [own[0] for own in slots],
            block_size=block_size,
        )

    def new(self, stored):
        return torch.cat([x[context - query :] for x, (query, context) in zip(stored, self.lengths, strict=True)])

    def run(self, attention=None, layer=1):
        attention = attention or CachedAttention(self.batch, self.storage)
        return attention(layer, torch.cat(self.q), self.new(self.k), self.new(self.v))

    def expected(self, **changes):
        return torch.cat([reference(*qkv, **changes) for qkv in zip(self.q, self.k, self.v, strict=True)])


MIXES = {
    "decodes of different lengths": [(1, 9), (1, 1), (1, 200), (1, 8), (1, 13)],
    "decodes of one length": [(1, 12), (1, 12), (1, 12)],
    "whole prefills": [(7, 7), (2, 2), (1, 1)],
    "chunks with earlier context": [(2, 5), (3, 17), (8, 9)],
    "everything": [(1, 30), (5, 5), (1, 3), (3, 11), (1, 29), (4, 4)],
}


@pytest.mark.parametrize("algorithm", ["auto", "naive", "flash"])
@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("lengths", MIXES.values(), ids=MIXES)
def test_any_mix_equals_the_reference(lengths, block_size, paged, algorithm):
    case = Case(lengths, (4, 2, 8), block_size, paged)
    out = case.run(CachedAttention(case.batch, case.storage, algorithm))
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("algorithm", ["auto", "naive", "flash"])
@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_heads_equal_the_reference(shape, paged, algorithm):
    case = Case(MIXES["everything"], shape, paged=paged)
    out = case.run(CachedAttention(case.batch, case.storage, algorithm))
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"last": lambda row, Lq, S: min(row, S - 1)},  # aligned to the start
        {"last": lambda row, Lq, S: S - 1},  # not causal
        {"last": lambda row, Lq, S: max(S - Lq + row - 1, 0)},  # a token does not see itself
        {"head": lambda h, H, G: h % G},  # query heads dealt out in turn
    ],
)
def test_a_wrong_mask_or_head_would_show(wrong):
    case = Case([(2, 5)], (4, 2, 8))
    assert (case.run().double() - case.expected(**wrong)).abs().max() > 1000 * TOLERANCE


def test_mask_is_aligned_to_the_end():
    """2 queries, 5 keys: rows 11110 and 11111 [flash-attention#517]. V is one-hot, so the output is the weights."""
    case = Case([(2, 5)], (1, 1, 5))
    case.q, case.k, case.v = [torch.zeros(2, 1, 5)], [torch.zeros(5, 1, 5)], [torch.eye(5)[:, None]]
    for token, slot in enumerate(case.slots[0]):
        case.storage.keys(1).flatten(0, 1)[slot] = 0
        case.storage.values(1).flatten(0, 1)[slot] = torch.eye(5)[token]
    torch.testing.assert_close(case.run()[:, 0], torch.tensor([[0.25] * 4 + [0.0], [0.2] * 5]))


def test_writes_its_own_slots_of_its_own_layer_only():
    case = Case(MIXES["everything"], (4, 2, 8))
    before = case.storage.pool.clone()
    case.run(layer=1)
    assert torch.equal(before[0].nan_to_num(9.0), case.storage.pool[0].nan_to_num(9.0))
    changed = (before[1].nan_to_num(9.0) != case.storage.pool[1].nan_to_num(9.0)).flatten(0, 1).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == sorted(case.batch.slot_mapping)
    for own, k in zip(case.slots, case.k, strict=True):
        assert torch.equal(case.storage.keys(1).flatten(0, 1)[own], k)


def test_slot_minus_one_is_not_written():
    """The last token of a prompt that is stored already is computed again without touching its block."""
    case = Case([(1, 6), (2, 4)], (4, 2, 8))
    expected = case.run()
    stored = case.storage.pool.clone()
    slots = [-1, -1, case.batch.slot_mapping[2]]
    batch = AttentionBatch([1, 2], [6, 4], slots, case.batch.block_tables, block_size=4)
    skipped_k = case.new(case.k)
    skipped_k[:2] = 99.0
    out = CachedAttention(batch, case.storage)(1, torch.cat(case.q), skipped_k, case.new(case.v))
    assert torch.equal(out, expected)
    assert torch.equal(stored.nan_to_num(9.0), case.storage.pool.nan_to_num(9.0))


def test_reads_what_is_stored_not_what_it_was_given():
    """A storage of 16 bit rounds; a prefill must see the rounded keys, or chunking would change its tokens."""
    case = Case([(6, 6)], (4, 2, 8))
    case.storage = Storage(4, 4, 2, 8, torch.bfloat16)
    out = case.run()
    case.k, case.v = [case.k[0].bfloat16().float()], [case.v[0].bfloat16().float()]
    torch.testing.assert_close(out.double(), case.expected(), rtol=0, atol=TOLERANCE)


def test_contiguous_ranges_are_read_as_views():
    case = Case(MIXES["everything"], (4, 2, 8), paged=False)
    with OpCount() as count:
        case.run()
    assert count.names["index_select"] == 0
    assert count.names["clone"] <= 2 * len(case.lengths)  # layouts of q and of the result, never of K and V


def test_decodes_of_similar_length_are_computed_together():
    case = Case([(1, 100 - i) for i in range(16)] + [(1, 900)], (3, 1, 4))
    attention = CachedAttention(case.batch, case.storage)
    with OpCount() as count:
        case.run(attention)
    assert count.names["index_select"] == 4  # K and V of two groups: 16 short ones, and the long one alone
    assert sum(len(read.rows) for read in attention.reads) == 17


@pytest.mark.parametrize("lengths", [[5], [1, 4, 2]])
def test_packed_sequences_do_not_see_each_other(lengths):
    torch.manual_seed(0)
    q, k, v = torch.randn(sum(lengths), 4, 8), torch.randn(sum(lengths), 2, 8), torch.randn(sum(lengths), 2, 8)
    out = PackedCausalAttention(lengths)(0, q, k, v)
    parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    expected = torch.cat([reference(*part) for part in parts])
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE)


def test_bad_shapes_are_refused():
    case = Case([(1, 3)], (4, 2, 8))
    attention = CachedAttention(case.batch, case.storage)
    q, kv = torch.zeros(1, 4, 8), torch.zeros(1, 2, 8)
    with pytest.raises(ValueError, match="got 4 query heads and 3 KV heads"):  # [fla#1029]
        attention(0, q, torch.zeros(1, 3, 8), torch.zeros(1, 3, 8))
    with pytest.raises(ValueError, match=r"q \[T, H, D\] and k, v \[T, G, D\]"):
        attention(0, q, kv, torch.zeros(2, 2, 8))
    with pytest.raises(ValueError, match="the 1 query tokens of the batch, got 2"):
        attention(0, torch.zeros(2, 4, 8), torch.zeros(2, 2, 8), torch.zeros(2, 2, 8))
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
        AttentionBatch([1], [3], [2], [[4]], block_size=4),
        AttentionBatch([1], [3], [2], [[-1]], block_size=4),
        AttentionBatch([1], [3], [16], [[0]], block_size=4),
        AttentionBatch([1], [3], [2], starts=[14], block_size=4),
    ],
)
def test_slots_outside_the_storage_are_refused(batch):
    with pytest.raises(ValueError, match=r"expected slots in 0\.\.15, got"):
        CachedAttention(batch, Storage(4, 4, 2, 8))
