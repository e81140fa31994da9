import pytest
import torch

from servelab.ops import rms_norm


def test_equals_the_formula_in_float64():
    x, weight = torch.randn(5, 24), torch.randn(24)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 0.1).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, eps=0.1).double(), expected, rtol=1e-5, atol=1e-6)


def test_eps_keeps_a_zero_vector_finite():
    assert rms_norm(torch.zeros(2, 8), torch.ones(8), eps=1e-5).equal(torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_squares_in_float32(dtype):
    """300 squared is beyond float16's 65,504."""
    out = rms_norm(torch.full((1, 8), 300.0, dtype=dtype), torch.ones(8, dtype=dtype), eps=1e-5)
    assert out.dtype == dtype
    assert out.float().allclose(torch.ones(1, 8), atol=1e-2)
