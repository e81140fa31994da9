"""`merge_attention`: parts of a context weigh as much as they hold; a part that saw nothing counts nothing."""

import itertools
import math

import pytest
import torch

from servelab.kernels import flash_attention_reference, merge_attention, merge_attention_reference
from tests.kernels.conftest import assert_near, randn


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("head_dim", [1, 59, 64])
def test_parts_make_the_whole(run, num_parts, head_dim):
    q, k, v = randn(5, 2, head_dim, seed=1), randn(16, 2, head_dim, seed=2), randn(16, 2, head_dim, seed=3)
    cuts = [16 * i // num_parts for i in range(num_parts + 1)]
    parts = [
        flash_attention_reference(q, k[start:stop], v[start:stop], causal=False)
        for start, stop in itertools.pairwise(cuts)
    ]
    outs, lses = (torch.stack(column) for column in zip(*parts, strict=True))
    want, want_lse = flash_attention_reference(q.double().float(), k, v, causal=False)
    for out, lse in (run(merge_attention, outs, lses).result, merge_attention_reference(outs, lses)):
        assert_near(out, want, want.double())
        assert_near(lse, want_lse, want_lse.double())


def test_a_part_that_saw_nothing_counts_nothing_whatever_it_holds(run):
    outs = randn(3, 2, 2, 8)
    lses = randn(3, 2, 2)
    lses[1] = -math.inf
    outs[1] = math.nan
    want, want_lse = merge_attention_reference(outs[[0, 2]], lses[[0, 2]])
    for out, lse in (run(merge_attention, outs, lses).result, merge_attention_reference(outs, lses)):
        assert torch.allclose(out, want, atol=1e-6)
        assert torch.allclose(lse, want_lse, atol=1e-6)
    lses[:] = -math.inf
    for out, lse in (run(merge_attention, outs, lses).result, merge_attention_reference(outs, lses)):
        assert torch.equal(out, torch.zeros(2, 2, 8))
        assert (lse == -math.inf).all()


def test_large_sums_do_not_overflow_and_dtypes_stay(run):
    outs, lses = randn(2, 3, 1, 16, dtype=torch.float16), torch.tensor([300.0, 301.0])[:, None, None].expand(2, 3, 1)
    out, lse = run(merge_attention, outs, lses).result
    assert out.dtype == torch.float16
    weight = 1 / (1 + math.e)
    assert_near(
        out, merge_attention_reference(outs, lses)[0], weight * outs[0].double() + (1 - weight) * outs[1].double()
    )
    assert torch.allclose(lse, torch.tensor(301 + math.log(1 + math.exp(-1))))


def test_requests_the_bytes_of_its_formula(run):
    record = run(merge_attention, randn(3, 5, 2, 24), randn(3, 5, 2)).record
    rows = 5 * 2
    assert record.loaded_bytes("outs") + record.stored_bytes("out") == rows * (3 + 1) * 24 * 4
    # The sums are asked for twice: all of a row at first, then each with its part.
    assert record.loaded_bytes("lses") + record.stored_bytes("lse") == rows * (2 * 3 + 1) * 4


@pytest.mark.parametrize(
    ("outs", "lses"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2, 3)),
        (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3)),
        (torch.zeros(0, 3, 4, 5), torch.zeros(0, 3, 4)),
        (torch.zeros(2, 3, 4, 5).int(), torch.zeros(2, 3, 4)),
        (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4).half()),
    ],
)
def test_refuses_what_does_not_fit(outs, lses):
    with pytest.raises(ValueError, match=r"expected (outs \[S, T, H, D\]|floating-point outs)"):
        merge_attention(outs, lses)
