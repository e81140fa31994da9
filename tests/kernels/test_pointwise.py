"""`rms_norm`, `rotary_embedding` and `silu_and_mul`: equal to the reference at any size, through any view."""

import math

import pytest
import torch

from servelab.kernels import (
    rms_norm,
    rms_norm_reference,
    rotary_embedding,
    rotary_embedding_reference,
    silu_and_mul,
    silu_and_mul_reference,
)
from tests.kernels.conftest import assert_near, randn

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 64), (5, 59), (2, 3, 576), (2, 1100), (0, 8)])
def test_rms_norm(run, shape, dtype):
    x, weight = randn(*shape, dtype=dtype) * 3, randn(shape[-1], seed=1, dtype=dtype)
    if not x.numel():
        assert rms_norm(x, weight, 1e-5).shape == shape
        return
    x64 = x.double()
    exact = x64 / (x64.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    for out in (run(rms_norm, x, weight, 1e-5).result, rms_norm(x, weight, 1e-5)):
        assert_near(out, rms_norm_reference(x, weight, 1e-5), exact)


def test_rms_norm_rounds_the_normalised_vector_before_the_weight(run):
    """As the models were trained: with one rounding at the end, other last bits come out."""
    x, weight = randn(40, 64, dtype=torch.float16), randn(64, seed=1, dtype=torch.float16)
    out = run(rms_norm, x, weight, 1e-5).result
    want = rms_norm_reference(x, weight, 1e-5)
    x32 = x.float()
    rounded_once = (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-5) * weight.float()).half()
    assert (out != want).float().mean() < 0.01 < 0.1 < (rounded_once != want).float().mean()


def test_rms_norm_of_heads_cut_out_of_a_projection(run):
    heads = randn(5, 8, 16)[:, 2:5]
    weight = randn(16, seed=1)
    assert torch.allclose(run(rms_norm, heads, weight, 1e-6).result, rms_norm_reference(heads, weight, 1e-6), atol=1e-6)
    turned = randn(16, 5).T
    assert torch.allclose(
        run(rms_norm, turned, weight, 1e-6).result, rms_norm_reference(turned, weight, 1e-6), atol=1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 5, 60), (1, 9, 64), (7, 1, 256)])
def test_rotary_embedding(run, shape, dtype):
    x = randn(*shape, dtype=dtype)
    angles = randn(shape[0], 1, shape[2], seed=1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    half = shape[2] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), -1).double()
    exact = x.double() * cos.double() + swapped * sin.double()
    for out in (run(rotary_embedding, x, cos, sin).result, rotary_embedding(x, cos, sin)):
        assert_near(out, rotary_embedding_reference(x, cos, sin), exact)


def test_rotary_embedding_of_heads_cut_out_of_a_projection(run):
    heads = randn(5, 8, 16)[:, 2:5]
    cos, sin = randn(5, 1, 16, seed=1), randn(5, 1, 16, seed=2)
    want = rotary_embedding_reference(heads, cos, sin)
    assert torch.allclose(run(rotary_embedding, heads, cos, sin).result, want, atol=1e-6)
    turned = heads.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.allclose(run(rotary_embedding, turned, cos, sin).result, want, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2,), (1, 6), (3, 118), (2, 2, 3072), (2, 2200)])
def test_silu_and_mul(run, shape, dtype):
    x = randn(*shape, dtype=dtype) * 4
    gate, up = x.double().chunk(2, -1)
    exact = gate / (1 + (-gate).exp()) * up
    for out in (run(silu_and_mul, x).result, silu_and_mul(x)):
        assert_near(out, silu_and_mul_reference(x), exact)


def test_silu_and_mul_of_large_numbers_and_views(run):
    x = torch.tensor([[-1e4, 1e4, -80.0, 0.0, 2.0, 2.0, 2.0, 2.0]])
    assert torch.allclose(run(silu_and_mul, x).result, silu_and_mul_reference(x))
    assert math.isfinite(run(silu_and_mul, x).result.sum().item())
    view = randn(6, 5).T
    assert torch.allclose(run(silu_and_mul, view).result, silu_and_mul_reference(view), atol=1e-6)


def test_each_requests_the_bytes_of_its_formula(run):
    record = run(rms_norm, randn(5, 59), randn(59), 1e-5).record
    assert record.loaded_bytes("x") == record.loaded_bytes("weight") == record.stored_bytes("out") == 5 * 59 * 4
    record = run(silu_and_mul, randn(5, 2 * 1100)).record
    assert record.loaded_bytes("x") == 2 * record.stored_bytes("out") == 2 * 5 * 1100 * 4
    record = run(rotary_embedding, randn(5, 3, 16), randn(5, 1, 16), randn(5, 1, 16)).record
    assert (
        {record.loaded_bytes(name) for name in ("x", "cos", "sin")} == {record.stored_bytes("out")} == {5 * 3 * 16 * 4}
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: rms_norm(torch.zeros(3, 4), torch.zeros(5), 1e-5),
        lambda: rms_norm(torch.zeros(3, 0), torch.zeros(0), 1e-5),
        lambda: rms_norm(torch.zeros(3, 4).half(), torch.zeros(4), 1e-5),
        lambda: rms_norm(torch.zeros(()), torch.zeros(1), 1e-5),
        lambda: silu_and_mul(torch.zeros(3, 5)),
        lambda: silu_and_mul(torch.zeros(3, 0)),
        lambda: silu_and_mul(torch.zeros(3, 4).int()),
        lambda: rotary_embedding(torch.zeros(3, 2, 5), torch.zeros(3, 1, 5), torch.zeros(3, 1, 5)),
        lambda: rotary_embedding(torch.zeros(3, 2, 4), torch.zeros(2, 1, 4), torch.zeros(2, 1, 4)),
        lambda: rotary_embedding(torch.zeros(3, 2, 4), torch.zeros(3, 1, 4), torch.zeros(3, 1, 4).half()),
    ],
)
def test_refuses_what_does_not_fit(call):
    with pytest.raises(ValueError, match="expected"):
        call()
