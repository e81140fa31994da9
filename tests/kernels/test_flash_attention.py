"""`flash_attention`: equal to attention written out, for every shape, and from no more memory than its formula says."""

import math

import pytest
import torch

from servelab.kernels import flash_attention, flash_attention_reference
from servelab.kernels.flash_attention import tile_size
from tests.kernels.conftest import assert_near, randn
from tests.kernels.oracle import attention, plain_attention

HALF, FULL = torch.float16, torch.float32


def make(num_queries, num_keys, num_heads, num_kv_heads, head_dim, dtype=FULL):
    q = randn(num_queries, num_heads, head_dim, seed=1, dtype=dtype)
    k, v = (randn(num_keys, num_kv_heads, head_dim, seed=seed, dtype=dtype) for seed in (2, 3))
    return q, k, v


def check(run, q, k, v, causal=True, **kwargs):
    out, lse = run(flash_attention, q, k, v, causal=causal, **kwargs).result
    exact_out, exact_lse = attention(q, k, v, causal, kwargs.get("scale"))
    assert_near(out, plain_attention(q, k, v, causal, kwargs.get("scale")), exact_out)
    assert_near(lse, exact_lse.float(), exact_lse)
    return out, lse


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("num_queries", "num_keys"), [(1, 1), (1, 70), (33, 33), (64, 64), (65, 65), (70, 133), (3, 32), (5, 31)]
)
def test_odd_lengths_of_queries_and_keys(run, num_queries, num_keys, causal):
    check(run, *make(num_queries, num_keys, 2, 1, 16), causal=causal)


@pytest.mark.parametrize("head_dim", [1, 2, 40, 59, 80, 96, 111, 128, 256])
@pytest.mark.parametrize("length", [1, 37])
def test_any_head_dim(run, head_dim, length):
    """No power of two, and one token [triton#621]."""
    check(run, *make(length, length, 2, 2, head_dim))


@pytest.mark.parametrize("dtype", [FULL, HALF])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (9, 3), (6, 1)])
def test_shared_heads_in_each_dtype(run, num_heads, num_kv_heads, dtype):
    check(run, *make(45, 50, num_heads, num_kv_heads, 64, dtype))


def test_the_causal_mask_is_aligned_to_the_end(run):
    """Lq 2, Lk 5 -> 11110 / 11111; Lq 5, Lk 2 -> three rows that see nothing: 0, and no NaN [flash-attention#517]."""
    for num_queries, num_keys in ((2, 5), (5, 2)):
        v = torch.eye(num_keys, 16)[:, None]  # the result of a row is its weights
        out, lse = run(flash_attention, torch.zeros(num_queries, 1, 16), torch.zeros(num_keys, 1, 16), v).result
        seen = (out[:, 0, :num_keys] > 0).int().tolist()
        if num_queries == 2:
            assert seen == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
        else:
            assert seen == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]
            assert torch.equal(out[:3], torch.zeros(3, 1, 16))
            assert lse[:3].tolist() == [[-math.inf]] * 3
    check(run, *make(5, 2, 2, 1, 40))
    check(run, *make(70, 2, 2, 1, 16))


@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_do_not_see_each_other(run, causal):
    """Of different lengths, one without queries, one without keys."""
    lengths = [(3, 9), (0, 3), (40, 40), (2, 0), (1, 70)]
    q, k, v = make(46, 122, 2, 1, 16)
    starts = [
        torch.tensor([0, *torch.tensor(column).cumsum(0)], dtype=torch.int32) for column in zip(*lengths, strict=True)
    ]
    out, lse = run(flash_attention, q, k, v, causal=causal, query_starts=starts[0], key_starts=starts[1]).result
    again, _ = run(
        flash_attention, q, k, v, causal=causal, query_starts=starts[0].long(), key_starts=starts[1].long(),
        max_query_length=40,
    ).result  # fmt: skip
    assert torch.equal(out, again)
    for i in range(len(lengths)):
        mine, theirs = slice(*starts[0][i : i + 2].tolist()), slice(*starts[1][i : i + 2].tolist())
        exact, exact_lse = attention(q[mine], k[theirs], v[theirs], causal)
        assert_near(out[mine], exact.float(), exact)
        assert_near(lse[mine], exact_lse.float(), exact_lse)


def test_key_starts_are_query_starts_unless_given(run):
    q, k, v = make(10, 10, 2, 2, 16)
    starts = torch.tensor([0, 4, 10], dtype=torch.int32)
    both = run(flash_attention, q, k, v, query_starts=starts, key_starts=starts).result
    assert torch.equal(run(flash_attention, q, k, v, query_starts=starts).result[0], both[0])


def test_views_of_one_tensor_and_other_strides(run):
    """K and V as halves of one tensor [aiter#3498]; heads before tokens; a last dimension that is not contiguous."""
    cache = randn(20, 2, 3, 16)
    q = randn(6, 20, 16, seed=1).transpose(0, 1)
    k, v = cache.unbind(1)
    out, _ = check(run, q, k, v)
    assert torch.equal(out, check(run, q.contiguous(), k.contiguous(), v.contiguous())[0])
    check(run, randn(20, 16, 6).transpose(1, 2), k, v)


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.7, -0.5])
def test_the_scale_of_the_scores(run, scale):
    check(run, *make(20, 20, 2, 1, 16), scale=scale)


def test_large_scores_do_not_overflow(run):
    q, k, v = make(40, 40, 1, 1, 16)
    check(run, q * 100, k * 10, v)
    check(run, (q * 20).half(), (k * 20).half(), v.half())


def test_a_fault_stays_in_its_row(run):
    """A NaN in one query reaches its own row and no other; one in the last key, only who sees it."""
    q, k, v = make(40, 40, 1, 1, 16)
    clean, _ = run(flash_attention, q, k, v).result
    q[7, 0, 3] = math.nan
    out, lse = run(flash_attention, q, k, v).result
    assert out[7].isnan().all()
    assert lse[7].isnan().all()
    out[7] = clean[7]
    assert torch.equal(out, clean)
    q[7, 0, 3] = 0.0
    k[39, 0, 3] = math.nan
    out, _ = run(flash_attention, q, k, v).result
    assert out[39].isnan().all()
    assert not out[:39].isnan().any()


@pytest.mark.parametrize("head_dim", [16, 59, 200])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(64, 64), (70, 133), (130, 130), (5, 2)])
def test_requests_exactly_the_bytes_of_its_formula(run, num_queries, num_keys, head_dim):
    q, k, v = make(num_queries, num_keys, 2, 1, head_dim)
    rows = tile_size(head_dim, q.dtype, 0)[0]
    tiles = math.ceil(num_queries / rows)
    for causal in (False, True):
        record = run(flash_attention, q, k, v, causal=causal).record
        of_head = head_dim * 4
        assert record.loaded_bytes("q") == record.stored_bytes("out") == 2 * num_queries * of_head
        visited = [
            min(num_keys, max(0, num_keys - num_queries + (i + 1) * rows)) if causal else num_keys for i in range(tiles)
        ]
        assert record.loaded_bytes("k") == record.loaded_bytes("v") == 2 * sum(visited) * of_head
        assert record.stored_bytes("lse") == 2 * num_queries * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), "q [Tq, H, D] and k, v [Tk, G, D]"),
        (lambda q, k, v: (q, k, v[:3]), "q [Tq, H, D] and k, v [Tk, G, D]"),
        (lambda q, k, v: (q[..., :8], k, v), "q [Tq, H, D] and k, v [Tk, G, D]"),
        (lambda q, k, v: (q[:, :3], k, v), "got 3 query heads and 2 KV heads"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), "float32, float16 or bfloat16"),
        (lambda q, k, v: (q.half(), k, v), "the same for all"),
        (lambda q, k, v: tuple(torch.zeros(4, 2, 257) for _ in range(3)), "1 to 256, got 257"),
    ],
)
def test_refuses_what_does_not_fit(change, message):
    """Heads that do not divide are named, both [fla#1029]."""
    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
        flash_attention(*change(*make(4, 4, 4, 2, 16)))


@pytest.mark.parametrize("starts", [[0, 3], [0, 3, 5], [1, 4], [0, 5, 4], [0]])
def test_refuses_starts_that_do_not_fit(starts):
    q, k, v = make(4, 4, 2, 2, 16)
    with pytest.raises(ValueError, match="expected query_starts"):
        flash_attention(q, k, v, query_starts=torch.tensor(starts))
    with pytest.raises(ValueError, match="key_starts"):
        flash_attention(q, k, v, query_starts=torch.tensor([0, 4]), key_starts=torch.tensor(starts))
    with pytest.raises(ValueError, match="key_starts alone"):
        flash_attention(q, k, v, key_starts=torch.tensor([0, 4]))


def test_without_a_gpu_the_reference_answers():
    q, k, v = make(7, 9, 4, 2, 16)
    for got, want in zip(flash_attention(q, k, v), flash_attention_reference(q, k, v), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [FULL, HALF, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_attention_written_out(dtype, causal):
    q, k, v = make(9, 12, 4, 2, 20, dtype)
    out, lse = flash_attention_reference(q, k, v, causal=causal)
    exact, exact_lse = attention(q, k, v, causal)
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() <= torch.finfo(dtype).eps * 4
    assert (lse.double() - exact_lse).abs().max() <= 1e-5
