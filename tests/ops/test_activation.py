import torch

from servelab.ops import silu_and_mul


def test_the_first_half_is_the_gate():
    """silu(0) is 0 and silu(30) is 30 within rounding; swapped halves would give 0 for both."""
    out = silu_and_mul(torch.tensor([[0.0, 30.0, 7.0, 2.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.0, 60.0]]))


def test_equals_the_formula():
    gate, up = torch.randn(4, 6), torch.randn(4, 6)
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(silu_and_mul(torch.cat((gate, up), dim=-1)), expected)
