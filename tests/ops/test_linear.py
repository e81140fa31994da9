import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from servelab.ops import Linear
from servelab.ops.linear import can_use_onednn


def make_layer(in_features=40, out_features=24, bias=True, exact=False):
    torch.manual_seed(0)
    layer = Linear(in_features, out_features, bias=bias).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.uniform_(-0.2, 0.2)
    if exact:
        layer.weight.copy_(layer.weight.bfloat16())
    return layer


@pytest.mark.parametrize("exact", [True, False], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
def test_packed_equals_plain(cpu_backend, tokens, bias, exact):
    layer, x = make_layer(bias=bias, exact=exact), torch.randn(tokens, 40)
    weight, expected = layer.weight.clone(), layer(x)
    layer.pack()
    assert layer.form == ("panels" if cpu_backend == "compiled" else "onednn" if can_use_onednn(weight) else "plain")
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer.dense_weight(), weight)
    assert torch.equal(layer.rows(torch.tensor([23, 0, 7])), weight[[23, 0, 7]])


def test_packing_twice_changes_nothing(cpu_backend):
    layer, x = make_layer(), torch.randn(2, 40)
    layer.pack()
    once = layer(x)
    layer.pack()
    assert torch.equal(layer(x), once)


def test_exact_weights_are_held_in_half_the_bytes(cpu_backend):
    layer = make_layer(64, 32, bias=False, exact=True)
    layer.pack()
    if cpu_backend == "compiled":
        assert layer.weight.nbytes == 64 * 32 * 2
        layer = make_layer(64, 32, bias=False)
        layer.pack()
        assert layer.weight.nbytes == 64 * 32 * 4


def test_what_cannot_be_packed_stays_plain():
    layer = Linear(8, 4).double()
    layer.pack()
    assert layer.form == "plain"
    assert layer(torch.zeros(1, 8, dtype=torch.float64)).dtype == torch.float64
    assert not can_use_onednn(torch.zeros(4, 8, device="meta"))
    assert not can_use_onednn(torch.zeros(4, 8, dtype=torch.float16))


def test_a_gradient_passes_through_a_packed_layer(cpu_backend):
    """Later chapters train on top of a frozen model."""
    layer = make_layer()
    weight = layer.weight.clone()
    layer.pack()
    x = torch.randn(3, 40, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 40))


def test_leading_dimensions_and_views_are_kept(cpu_backend):
    layer, x = make_layer(), torch.randn(5, 2, 80)[:, :, ::2]
    expected = F.linear(x, layer.weight, layer.bias)
    layer.pack()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_a_layer_without_memory_does_not_import_pytorchs_compiler():
    """Its own first draw of weights would, and hold 170 MB for nothing."""
    code = (
        "import sys, torch; from servelab.ops import Linear\n"
        "with torch.device('meta'): Linear(4, 4)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
