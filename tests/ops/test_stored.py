"""Attention over a cache of 8 or 16 bit: it reads what is stored, whichever token was written when."""

import pytest
import torch

from servelab.kernels import quantize_kv
from servelab.ops import CachedAttention

FORMATS = ["int8", "fp8_e4m3", "fp8_e5m2"]
TOLERANCE = 5e-5  # float32 sums over numbers that are exactly those of the reference; E5M2's reach 5
MIX = [(1, 30), (5, 5), (1, 300), (3, 11), (4, 270), (40, 70)]

pytestmark = pytest.mark.usefixtures("cpu_backend")


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("shape", [(9, 3, 64), (4, 4, 40), (6, 1, 59)])
@pytest.mark.parametrize("algorithm", ["auto", "naive"])
@pytest.mark.parametrize("format", FORMATS)
def test_equals_the_reference_on_the_stored_numbers(make_case, format, algorithm, shape, paged):
    case = make_case(MIX, shape, 3 if paged else 4, paged, format=format)
    torch.testing.assert_close(case.run(algorithm).double(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cache_of_16_bit_rounds(make_case, dtype):
    """A prefill must see the rounded keys, or chunking would change its tokens."""
    case = make_case(MIX, (4, 2, 59), dtype=dtype)
    torch.testing.assert_close(case.run().double(), case.expected(), rtol=0, atol=TOLERANCE)
    assert torch.equal(case.storage.keys(1).flatten(0, 1)[case.slots[5]], case.k[5].to(dtype))


@pytest.mark.parametrize("format", FORMATS)
def test_stores_what_quantize_kv_gives(make_case, format):
    """The same codes and scales bit for bit, also for a row of zeros, a huge one and one with an infinity."""
    case = make_case([(8, 8)], (4, 2, 59), format=format)
    for place, value in enumerate((0.0, 1e-30, 1e9, float("inf"))):
        case.k[0][place, 0] = value
        case.v[0][place, 1, 3] = value
    case.run()
    for x, stored, scales in (
        (case.k[0], case.storage.keys(1), case.storage.key_scales(1)),
        (case.v[0], case.storage.values(1), case.storage.value_scales(1)),
    ):
        codes, expected_scales = quantize_kv(x, format, None if format == "int8" else scales[:, None])
        assert torch.equal(stored.flatten(0, 1)[case.slots[0]], codes)
        if format == "int8":
            assert torch.equal(scales.flatten(0, 1)[case.slots[0]], expected_scales.squeeze(-1))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tensor", [0, 1], ids=["keys", "values"])
def test_a_neighbours_scale_would_show(make_case, format, tensor):
    """The scale of the next head (FP8) or of the next slot (INT8)."""
    case = make_case([(1, 40)], (4, 2, 8), format=format)
    right, expected = case.run(), case.expected()
    torch.testing.assert_close(right.double(), expected, rtol=0, atol=TOLERANCE)
    scales = case.storage._scales
    if format == "int8":
        scales[1, :, :, tensor] = scales[1, :, :, tensor].nan_to_num(1.0).flatten(0, 1).roll(1, 0).view(-1, 4, 2)
    else:
        scales[1, tensor] = scales[1, tensor].flip(0)
    assert (right.double() - case.expected()).abs().max() > 20 * TOLERANCE


@pytest.mark.parametrize("format", FORMATS)
def test_a_token_of_nan_shows_and_stays_in_its_head(make_case, format):
    case = make_case([(1, 9)], (4, 2, 8), format=format)
    case.k[0][-1, 1, 5] = float("nan")
    out = case.run()
    assert out[:, :2].isfinite().all()
    assert out[:, 2:].isnan().all()


@pytest.mark.parametrize("format", ["auto", *FORMATS])
def test_chunks_read_what_a_whole_prefill_reads(make_case, format):
    """The cache's rounding is the same whichever chunk wrote a token."""
    whole = make_case([(12, 12)], (4, 2, 8), format=format)
    expected = whole.run()
    parts = make_case([(5, 5)], (4, 2, 8), format=format)
    for case, rows in ((parts, slice(0, 5)), (make_case([(7, 12)], (4, 2, 8), format=format), slice(5, 12))):
        if format not in ("auto", "int8"):
            case.storage._scales.copy_(whole.storage._scales)
        case.q, case.k, case.v = [whole.q[0][rows]], [whole.k[0][: rows.stop]], [whole.v[0][: rows.stop]]
        if rows.start:
            case.store(case.slots[0][:5], whole.k[0][:5], whole.v[0][:5], 4)
        torch.testing.assert_close(case.run(), expected[rows], rtol=0, atol=TOLERANCE)


def test_a_cache_of_another_kind_of_numbers_is_read_by_pytorch(make_case):
    case = make_case([(2, 6)], (4, 2, 8), dtype=torch.float64)
    assert CachedAttention(case.batch, case.storage).compiled is None
    torch.testing.assert_close(case.run().double(), case.expected(), rtol=0, atol=TOLERANCE)
