"""The three steps before `flash_attention`, each right, and each with the bytes that its docstring says."""

import math

import pytest
import torch

from servelab.kernels import (
    naive_attention,
    naive_attention_reference,
    online_softmax,
    online_softmax_reference,
    tiled_attention,
    tiled_attention_reference,
)
from tests.kernels.conftest import assert_near, randn
from tests.kernels.oracle import attention, plain_attention

STEPS = [(naive_attention, naive_attention_reference), (tiled_attention, tiled_attention_reference)]


def make(num_queries, num_keys, num_heads=2, head_dim=16, dtype=torch.float32):
    q = randn(num_queries, num_heads, head_dim, seed=1, dtype=dtype)
    return q, *(randn(num_keys, num_heads, head_dim, seed=seed, dtype=dtype) for seed in (2, 3))


@pytest.mark.parametrize(("operator", "reference"), STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 70), (64, 64), (65, 33), (70, 133)])
def test_equals_attention_written_out(run, operator, reference, num_queries, num_keys, dtype):
    q, k, v = make(num_queries, num_keys, dtype=dtype)
    exact, _ = attention(q, k, v, causal=False)
    plain = plain_attention(q, k, v, causal=False)
    for out in (run(operator, q, k, v).result, reference(q, k, v), operator(q, k, v)):
        assert_near(out, plain, exact)


@pytest.mark.parametrize(("operator", "reference"), STEPS)
def test_views_scales_and_large_scores(run, operator, reference):
    q, k, v = (x.transpose(0, 1) for x in make(2, 2, num_heads=40, head_dim=64))
    for scale in (None, 0.0, 1.0):
        exact, _ = attention(q, k, v, causal=False, scale=scale)
        assert_near(run(operator, q, k, v, scale=scale).result, reference(q, k, v, scale=scale), exact)


@pytest.mark.parametrize(("operator", "reference"), STEPS)
def test_refuses_what_does_not_fit(operator, reference):
    q, k, v = make(3, 4)
    for wrong in ((q, k[:, :1], v[:, :1]), (q, k, v[:3]), (q.half(), k, v), (q, k[:0], v[:0])):
        with pytest.raises(ValueError, match="expected"):
            operator(*wrong)


def test_naive_attention_takes_any_head_dim(run):
    q, k, v = make(5, 7, head_dim=59)
    assert_near(run(naive_attention, q, k, v).result, plain_attention(q, k, v, False), attention(q, k, v, False)[0])


@pytest.mark.parametrize("size", [{"rows": 24}, {"columns": 8}, {"rows": 0}])
def test_tiles_are_powers_of_two_from_16_on(size):
    with pytest.raises(ValueError, match="as a power of 2 from 16 on"):
        tiled_attention(*make(3, 4), **size)
    with pytest.raises(ValueError, match="head dimension as a power of 2"):
        tiled_attention(*make(3, 4, head_dim=59))


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (64, 16), (32, 32), (128, 16)])
def test_tiled_attention_requests_the_bytes_of_its_formula(run, rows, columns):
    q, k, v = make(100, 70)
    record = run(tiled_attention, q, k, v, rows=rows, columns=columns).record
    of_head = 16 * 4
    assert record.loaded_bytes("q") == record.stored_bytes("out") == 2 * 100 * of_head
    assert record.loaded_bytes("k") == record.loaded_bytes("v") == 2 * 70 * of_head * math.ceil(100 / rows)


def test_naive_attention_requests_the_bytes_of_its_formula_and_they_grow_with_the_square(run):
    """The log-log slope of the traffic is 2.00 +- 0.05 where the scores outweigh the inputs."""
    total = {}
    for length in (256, 512):
        q, k, v = make(length, length, num_heads=1, dtype=torch.float16)
        scores, softmax, weigh = run(naive_attention, q, k, v).records
        matrix, tiles = length * length * 2, length // 64
        assert scores.stored_bytes("scores") == softmax.loaded_bytes("scores") == matrix
        assert softmax.stored_bytes("scores") == weigh.loaded_bytes("weights") == matrix
        inputs = length * 16 * 2
        assert scores.loaded_bytes("q") == scores.loaded_bytes("k") == weigh.loaded_bytes("v") == tiles * inputs
        assert weigh.stored_bytes("out") == inputs
        total[length] = sum(record.loaded_bytes() + record.stored_bytes() for record in (scores, softmax, weigh))
        assert total[length] == 4 * matrix + 4 * inputs + 3 * (tiles - 1) * inputs
    assert abs(math.log2(total[512] / total[256]) - 2.0) <= 0.05


@pytest.mark.parametrize("size", [1, 2, 64, 1024])
@pytest.mark.parametrize("num_columns", [1, 2, 63, 130])
def test_online_softmax_in_tiles_of_any_size(run, size, num_columns):
    x = randn(3, num_columns) * 20
    assert_near(run(online_softmax, x, size=size).result, online_softmax_reference(x), x.double().softmax(-1))


def test_online_softmax_with_masked_beginnings_and_rows(run):
    """Minus infinity fills whole tiles, and a whole row, which has no softmax."""
    x = randn(3, 20)
    x[0, :9] = -math.inf
    x[1, 3:] = -math.inf
    x[2] = -math.inf
    out = run(online_softmax, x, size=4).result
    assert torch.allclose(out[:2], x[:2].softmax(-1), atol=1e-6)
    assert out[2].isnan().all()


def test_online_softmax_by_hand(run):
    """[1, 3 | 2, 5]: l is 1.135 and then 1.203; without the correction it would be 2.185."""
    x = torch.tensor([[1.0, 3.0, 2.0, 5.0]])
    out = run(online_softmax, x, size=2).result
    assert 1 / out[0, 3].item() == pytest.approx(1.203, abs=5e-4)
    first = run(online_softmax, x[:, :2], size=2).result
    assert 1 / first[0, 1].item() == pytest.approx(1.135, abs=5e-4)
    wrong = math.exp(1 - 3) + 1 + math.exp(2 - 5) + 1
    assert wrong == pytest.approx(2.185, abs=5e-4)


def test_online_softmax_reads_twice_and_writes_once(run):
    record = run(online_softmax, randn(3, 130), size=32).record
    assert record.loaded_bytes("x") == 2 * record.stored_bytes("out") == 2 * 3 * 130 * 4


@pytest.mark.parametrize(
    ("x", "size"),
    [(torch.zeros(3), 4), (torch.zeros(3, 0), 4), (torch.zeros(3, 4), 3), (torch.zeros(3, 4).int(), 4)],
)
def test_online_softmax_refuses_what_does_not_fit(x, size):
    with pytest.raises(ValueError, match="expected"):
        online_softmax(x, size=size)
