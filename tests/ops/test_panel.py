import pytest
import torch

from servelab.ops.panel import PANEL, from_panels, pack_panels, panel_rows


@pytest.mark.parametrize("exact", [True, False], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(1, 1), (16, 3), (17, 5), (40, 24), (256, 8), (257, 32), (530, 8)])
def test_unpacking_gives_the_weight_back(shape, exact):
    weight = torch.randn(shape)
    weight = weight.bfloat16().float() if exact else weight
    panels = pack_panels(weight)
    assert panels.dtype == (torch.bfloat16 if exact else torch.float32)
    assert panels.shape == (-(-shape[0] // PANEL), shape[1], PANEL)
    assert panels.is_contiguous()
    assert torch.equal(from_panels(panels, shape[0]), weight)
    rows = torch.randint(0, shape[0], (9,))
    assert torch.equal(panel_rows(panels, rows), weight[rows])


@pytest.mark.parametrize("row", [0, 255, 256, 299])
def test_one_number_that_is_no_bfloat16_is_enough(row):
    weight = torch.ones(300, 8)
    weight[row, 7] = 1 + 2.0**-9
    assert pack_panels(weight).dtype == torch.float32
    weight[row, 7] = 1 + 2.0**-7
    assert pack_panels(weight).dtype == torch.bfloat16


def test_the_order_of_a_column_is_what_the_kernel_reads():
    """As 32-bit words, row i lies in the low half of word i, and row i + 8 in the high half, little-endian."""
    panels = pack_panels(torch.arange(16.0)[:, None])
    assert panels.flatten().tolist() == [row for i in range(8) for row in (i, i + 8)]
    words = panels.view(torch.int32).flatten()
    assert (words & -65536).view(torch.float32).tolist() == list(range(8, 16))
    assert (words << 16).view(torch.float32).tolist() == list(range(8))
