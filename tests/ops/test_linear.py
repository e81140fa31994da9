import pytest
import torch
import torch.nn.functional as F

from servelab.ops import Linear
from servelab.ops.linear import can_pack


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_packed_equals_plain(tokens, bias):
    torch.manual_seed(0)
    layer, x = Linear(40, 24, bias=bias), torch.randn(tokens, 40)
    weight, expected = layer.weight.detach().clone(), F.linear(x, layer.weight, layer.bias)
    layer.pack()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    assert layer.weight.is_mkldnn == can_pack(weight)
    assert torch.equal(layer.weight.to_dense() if layer.weight.is_mkldnn else layer.weight, weight)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 24 * 40 + bias * 24


def test_what_cannot_be_packed_stays_plain():
    layer = Linear(8, 4).double()
    layer.pack()
    assert not layer.weight.is_mkldnn
    assert layer(torch.zeros(1, 8, dtype=torch.float64)).dtype == torch.float64
    assert not can_pack(torch.zeros(4, 8, device="meta"))
