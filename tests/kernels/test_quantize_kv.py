"""`quantize_kv`: every number within half a step, faults that stay in their group, and scales that never reach 0."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.kernels import (
    FP8_MAX,
    GRANULARITIES,
    dequantize_kv,
    dequantize_kv_reference,
    quantize_kv,
    quantize_kv_reference,
)
from tests.kernels.conftest import randn

FP8 = sorted(FP8_MAX)
# The spacing of float8 numbers, relative to the number: half a unit in the last of 3 and 2 bits, and the finest step.
RELATIVE = {"fp8_e4m3": 1 / 16, "fp8_e5m2": 1 / 8}
SMALLEST = {"fp8_e4m3": 2.0**-9, "fp8_e5m2": 2.0**-16}


def round_trip(x: torch.Tensor, dtype: str, scale=None) -> torch.Tensor:
    stored, scales = quantize_kv(x, dtype, scale)
    return dequantize_kv(stored, scales, dtype)


@pytest.mark.parametrize("shape", [(1,), (64,), (5, 1), (1, 3, 64), (7, 3, 59), (0, 3, 64), (2, 3, 4, 5)])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_has_a_float16_scale_a_group_and_meets_numbers_within_half_a_step(shape, x_dtype):
    x = randn(*shape).to(x_dtype)
    stored, scales = quantize_kv(x, "int8")
    assert (stored.dtype, scales.dtype) == (torch.int8, torch.float16)
    assert (stored.shape, scales.shape) == (x.shape, (*x.shape[:-1], 1))
    back = dequantize_kv(stored, scales, "int8")
    assert back.dtype == torch.float32
    # Dividing and multiplying round too, by far less than a thousandth of a step.
    assert ((back - x.float()).abs() <= scales.float() * 0.501).all()


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("shape", [(1,), (5, 1), (1, 3, 64), (7, 3, 59), (0, 3, 64)])
def test_fp8_is_stored_as_bytes_and_meets_numbers_within_its_relative_error(dtype, shape):
    x = randn(*shape) * 30
    stored, scales = quantize_kv(x, dtype)
    assert (stored.dtype, stored.shape) == (torch.uint8, x.shape)
    assert (scales.dtype, scales.item()) == (torch.float32, 1.0)
    error = (dequantize_kv(stored, scales, dtype) - x).abs()
    assert (error <= torch.maximum(x.abs() * RELATIVE[dtype], torch.tensor(SMALLEST[dtype] / 2))).all()


def test_an_outlier_of_64_makes_a_step_of_half():
    """The number that the course tells: what is below a quarter vanishes, in INT8 and not in FP8."""
    x = torch.tensor([64.0, 0.25, 0.26, -0.2, 1.0])
    stored, scale = quantize_kv(x, "int8")
    assert scale.item() == pytest.approx(0.504, abs=5e-4)
    assert stored.tolist() == [127, 0, 1, 0, 2]
    assert round_trip(x, "fp8_e4m3").tolist() == [64.0, 0.25, 0.25, -0.203125, 1.0]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9))
def test_int8_error_is_half_a_step_or_next_to_nothing(numbers):
    x = torch.tensor(numbers)
    stored, scale = quantize_kv(x, "int8")
    assert scale > 0
    assert stored.abs().max() <= 127
    error = (dequantize_kv(stored, scale, "int8") - x).abs().max().item()
    assert error <= max(scale.item() * 0.501, 4e-6)


@given(st.lists(st.floats(width=32), min_size=1, max_size=9), st.sampled_from(["int8", *FP8]))
def test_whatever_comes_in_codes_and_faults_stay_in_their_range(numbers, dtype):
    x = torch.tensor([numbers, [1.0] * len(numbers)])
    back = round_trip(x, dtype)
    assert torch.allclose(back[1], torch.ones(len(numbers)), atol=2e-3)
    assert not back.isinf().any()
    if dtype == "int8":
        assert (back[0].isnan() == x[0].isnan().any()).all()
    else:
        assert (back[0].isnan() == x[0].isnan()).all()


@pytest.mark.parametrize("dtype", ["int8", *FP8])
@pytest.mark.parametrize("shape", [(64,), (1, 3, 59), (4, 1)])
def test_zeros_are_finite_and_exactly_zero(dtype, shape):
    """A group of zeros must not get a scale of 0 [kernels-community#680]; alone, or beside a group that is not zero."""
    x = torch.zeros(shape)
    _, scales = quantize_kv(x, dtype)
    assert (scales > 0).all()
    assert scales.isfinite().all()
    assert round_trip(x, dtype).equal(x)
    assert round_trip(-x, dtype).abs().equal(x)
    beside = torch.stack((x, torch.full(shape, 3.0)))
    assert round_trip(beside, dtype)[0].equal(x)


@pytest.mark.parametrize("dtype", ["int8", *FP8])
@pytest.mark.parametrize("value", [127 * 2.0**-4, -127 * 2.0**-4, 1.0, -1.0, 448.0, 0.02, 2.0**-9, 3e4])
@pytest.mark.parametrize("width", [1, 64])
def test_a_constant_group_stays_constant(dtype, value, width):
    """As far as a range of zero width goes [kernels-community#680]: one value comes back, finite and as near as the
    format allows, exact where it can be: 127 steps of a float16 scale; a float8 number."""
    x = torch.full((width,), value)
    stored, scale = quantize_kv(x, dtype)
    back = dequantize_kv(stored, scale, dtype)
    assert (back == back[0]).all()
    if dtype == "int8":
        assert abs(back[0] - value) <= abs(value) * 2**-11
        assert (back[0] == value) == (abs(value) in (127 * 2.0**-4,))
    else:
        limited = min(value, FP8_MAX[dtype])
        assert abs(back[0] - limited) <= abs(limited) * RELATIVE[dtype]
        if abs(value) in (1.0, 448.0):
            assert back[0] == value


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("constant", [1.0, -0.02, 3e4, 1e-30])
def test_with_static_scales_too_zeros_are_exact_and_a_constant_stays_constant(dtype, constant):
    """The scale that makes the largest value just fit gives a constant back nearly exactly [kernels-community#680]."""
    x = torch.stack((torch.zeros(3, 64), torch.full((3, 64), constant)))  # [groups, heads, D]
    fitting = torch.full((3, 1), abs(constant)) / FP8_MAX[dtype]
    for scale in (0.5, 3.0, fitting):
        back = round_trip(x, dtype, scale)
        assert back.isfinite().all()
        assert back[0].abs().equal(x[0])
        assert (back[1] == back[1, 0, 0]).all()
    assert (round_trip(x, dtype, fitting)[1] - constant).abs().max() <= abs(constant) * 2**-22


@pytest.mark.parametrize("value", [1e-7, 3.7e-6, 1e-5, 1e-3, 0.0078, 1e-30, 1.4e-45])
def test_tiny_groups_are_met_within_what_a_float16_scale_can_say(value):
    """Below 0.008 the scale is a subnormal float16 with few digits; it is never rounded to 0."""
    x = torch.tensor([value, -value / 3, 0.0])
    stored, scale = quantize_kv(x, "int8")
    assert scale >= 2.0**-24
    assert (dequantize_kv(stored, scale, "int8") - x).abs().max() <= max(scale.item() * 0.501, 4e-6)


def test_a_group_beyond_the_largest_scale_saturates():
    x = torch.tensor([3e38, -3e38, 127 * 65504.0, 0.0])
    stored, scale = quantize_kv(x, "int8")
    assert scale == 65504
    assert stored.tolist() == [127, -127, 127, 0]


def test_a_nan_makes_its_own_int8_group_nan_and_no_other():
    x = randn(2, 3, 64)
    clean = round_trip(x, "int8")
    x[1, 2, 7] = math.nan
    back = round_trip(x, "int8")
    assert back[1, 2].isnan().all()
    back[1, 2] = clean[1, 2]
    assert back.equal(clean)


@pytest.mark.parametrize("fault", [math.inf, -math.inf])
def test_an_infinity_saturates_in_int8_and_reaches_no_other_group(fault):
    x = randn(2, 3, 64)
    clean = round_trip(x, "int8")
    x[1, 2, 7] = fault
    back = round_trip(x, "int8")
    assert back[1, 2, 7] == math.copysign(127 * 65504, fault)
    back[1, 2] = clean[1, 2]
    assert back.equal(clean)


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_saturates_explicitly_and_lets_nan_through(dtype):
    limit = FP8_MAX[dtype]
    x = torch.tensor([1e5, -1e5, 3e38, math.inf, -math.inf, math.nan, limit, 1.0])
    back = round_trip(x, dtype)
    assert back[5].isnan()
    expected = torch.tensor([limit, -limit, limit, limit, -limit, 0.0, limit, 1.0])
    assert back.nan_to_num(0.0).equal(expected)


@pytest.mark.parametrize("dtype", FP8)
def test_a_static_scale_may_be_a_number_one_a_head_or_one_a_group(dtype):
    x = randn(5, 3, 64) * 1000
    per_head = torch.tensor([[2.0], [0.5], [8.0]])
    stored, scales = quantize_kv(x, dtype, per_head)
    assert scales.equal(per_head)
    for head in range(3):
        alone, _ = quantize_kv(x[:, head], dtype, per_head[head].item())
        assert stored[:, head].equal(alone)
    per_group = per_head.expand(5, 3, 1)
    assert quantize_kv(x, dtype, per_group)[0].equal(stored)
    assert dequantize_kv(stored, per_head, dtype).equal(dequantize_kv(stored, per_group, dtype))
    assert dequantize_kv(stored[:, 1], 0.5, dtype).equal(dequantize_kv(stored, per_head, dtype)[:, 1])


def test_a_scale_widens_the_range_of_fp8():
    x = torch.tensor([1000.0])
    assert round_trip(x, "fp8_e4m3").item() == 448
    assert round_trip(x, "fp8_e4m3", 4.0).item() == 4 * 256


def test_views_are_read_in_place():
    """K and V may be views of one tensor, and a head's numbers need not lie side by side."""
    both = randn(6, 2, 3, 64)
    for dtype in ("int8", *FP8):
        for view in (*both.unbind(1), both[::2, 0], both.transpose(1, 2)[:, :, 1], both[..., ::2]):
            assert round_trip(view, dtype).equal(round_trip(view.contiguous(), dtype))


@pytest.mark.parametrize("dtype", ["int8", *FP8])
def test_the_launcher_reads_every_code_as_the_reference_does(dtype):
    """All 256 of them, NaN included, in place or as a view."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.int8 if dtype == "int8" else torch.uint8)
    scale = torch.rand(4, 1) + 0.5
    for stored in (codes.view(4, 4, 16), codes.view(8, 4, 8).transpose(0, 2), codes.view(4, 4, 16)[..., ::3]):
        expected = dequantize_kv_reference(stored, scale, dtype)
        back = dequantize_kv(stored, scale, dtype)
        assert back.dtype == torch.float32
        assert torch.equal(back.nan_to_num(1e9), expected.nan_to_num(1e9))
        assert back.isnan().equal(expected.isnan())


def test_the_scale_is_rounded_before_it_divides():
    """Codes that fit the unrounded scale miss by up to 127 * 2^-11 = 0.06 steps more: planted here, and seen."""
    step = 2.0**-7 * (1 + 2.0**-11)  # halfway between two float16 numbers
    x = torch.linspace(0.3, 127 * step, 4001)
    codes, scale = quantize_kv(x, "int8")
    planted = (x / step).round().to(torch.int8)
    assert (dequantize_kv(planted, scale, "int8") - x).abs().max() > scale * 0.55
    assert (dequantize_kv(codes, scale, "int8") - x)[x < 127 * scale].abs().max() <= scale * 0.501


def test_the_same_input_gives_the_same_bits_whatever_it_is_batched_with():
    x = randn(9, 3, 64)
    for dtype in ("int8", *FP8):
        stored, _ = quantize_kv(x, dtype)
        for row in range(9):
            assert quantize_kv(x[row : row + 1], dtype)[0].equal(stored[row : row + 1])


def test_the_input_stays_as_it_is():
    x = randn(2, 64)
    before = x.clone()
    for dtype in ("int8", *FP8):
        quantize_kv(x, dtype)
        quantize_kv_reference(x, dtype)
    assert x.equal(before)


@pytest.mark.parametrize("dtype", ["auto", "fp8", "INT8", "", None])
def test_an_unknown_format_is_refused(dtype):
    with pytest.raises(ValueError, match="expected dtype in"):
        quantize_kv(torch.zeros(4), dtype)
    with pytest.raises(ValueError, match="expected dtype in"):
        dequantize_kv(torch.zeros(4, dtype=torch.int8), 1.0, dtype)


@pytest.mark.parametrize("x", [torch.zeros(4, dtype=torch.int8), torch.tensor(1.0), torch.zeros(3, 0)])
def test_what_has_no_numbers_in_groups_is_refused(x):
    with pytest.raises(ValueError, match=r"expected x as floating-point numbers \[..., D\], got"):
        quantize_kv(x, "int8")


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (torch.zeros(4, dtype=torch.uint8), "int8"),
        (torch.zeros(4, dtype=torch.int8), "fp8_e4m3"),
        (torch.zeros(4), "fp8_e5m2"),
        (torch.zeros((), dtype=torch.int8), "int8"),
    ],
)
def test_codes_of_another_form_are_refused(stored, dtype):
    with pytest.raises(ValueError, match=r"expected codes as torch.u?int8 \[..., D\], got"):
        dequantize_kv(stored, 1.0, dtype)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-60, 1e60])
def test_a_static_scale_is_positive_and_finite_as_a_float32(dtype, scale):
    """By 0 nothing can be divided [kernels-community#680]; nor does a scale that float32 rounds to 0 help."""
    for scales in (scale, torch.tensor(scale), torch.tensor([[1.0], [scale], [1.0]])):
        with pytest.raises(ValueError, match="expected positive, finite scales, got"):
            quantize_kv(torch.ones(2, 3, 4), dtype, scales)
        with pytest.raises(ValueError, match="expected positive, finite scales, got"):
            dequantize_kv(torch.zeros(2, 3, 4, dtype=torch.uint8), scales, dtype)


def test_the_scale_of_an_int8_group_may_be_nan():
    """The group has a NaN, and stays one."""
    back = dequantize_kv(torch.zeros(2, 4, dtype=torch.int8), torch.tensor([[math.nan], [1.0]]), "int8")
    assert back.isnan().tolist() == [[True] * 4, [False] * 4]


def test_int8_with_a_static_scale_saturates_and_has_no_code_for_nan():
    x = torch.tensor([1.0, 0.26, -0.74, 1e9, -math.inf, math.nan])
    codes, scale = quantize_kv(x, "int8", 0.5)
    assert codes.tolist() == [2, 1, -1, 127, -127, 0]
    assert scale.item() == 0.5


@pytest.mark.parametrize("shape", [(63,), (3,), (5, 3), (2, 3, 1), (1, 5, 3, 64)])
def test_a_scale_that_does_not_broadcast_is_refused(shape):
    """One a head is [3, 1]: of [3], broadcasting would make three of 64 channels."""
    x = randn(5, 3, 64)
    match = r"expected a scale that broadcasts to \[5, 3, 64\], got"
    with pytest.raises(ValueError, match=match):
        quantize_kv(x, "fp8_e4m3", torch.ones(shape))
    with pytest.raises(ValueError, match=match):
        dequantize_kv(torch.zeros(5, 3, 64, dtype=torch.int8), torch.ones(shape), "int8")


# The axes that a scale runs along, of x [T, G, D], written out once more.
SHAPES = {
    "tensor": (1, 1, 1),
    "token": (7, 1, 1),
    "head": (1, 3, 1),
    "token_head": (7, 3, 1),
    "channel": (1, 3, 59),
}


@pytest.mark.parametrize("dtype", ["int8", *FP8])
@pytest.mark.parametrize("per", sorted(SHAPES))
def test_each_granularity_has_its_scales_and_gives_the_largest_number_the_largest_code(dtype, per):
    x = randn(7, 3, 59) * torch.logspace(-2, 2, 59)
    codes, scales = quantize_kv(x, dtype, per=per)
    assert scales.shape == SHAPES[per]
    largest = 127.0 if dtype == "int8" else FP8_MAX[dtype]
    for place in itertools.product(*(range(size) for size in SHAPES[per])):
        group = tuple(slice(None) if size == 1 else slice(i, i + 1) for i, size in zip(place, SHAPES[per], strict=True))
        assert scales[place].item() == pytest.approx(x[group].abs().max().item() / largest, rel=2**-11)
        numbers = dequantize_kv_reference(codes[group], 1.0, dtype)
        assert numbers.abs().max().item() == largest


def test_an_outlier_channel_spoils_its_token_and_not_its_channel():
    """Keys have channels that are large in every token: with a scale a channel the others keep their digits (KIVI)."""
    x = randn(50, 2, 64)
    x[..., 5] = 64.0
    rest = [place for place in range(64) if place != 5]
    errors = {}
    for per in ("token_head", "channel"):
        codes, scales = quantize_kv(x, "int8", per=per)
        errors[per] = (dequantize_kv(codes, scales, "int8") - x)[..., rest].abs().mean().item()
    assert errors["channel"] < errors["token_head"] / 10


@pytest.mark.parametrize(
    ("x", "options", "match"),
    [
        (randn(2, 3, 4), {"per": "block"}, "expected per in"),
        (randn(3, 4), {"per": "channel"}, r"for x \[T, G, D\], got 'channel' for \[3, 4\]"),
        (randn(2, 3, 4), {"per": "token", "scale": 1.0}, "a scale or per, got both"),
    ],
)
def test_granularities_that_do_not_fit_are_refused(x, options, match):
    with pytest.raises(ValueError, match=match):
        quantize_kv(x, "int8", **options)


@pytest.mark.parametrize("dtype", ["int8", *FP8])
@pytest.mark.parametrize("per", [None, *GRANULARITIES])
def test_the_kernels_give_what_the_references_give(run, dtype, per):
    """Bit for bit, also for groups of zeros, with faults, and far outside."""
    x = randn(7, 3, 59) * 100
    x[0, 0], x[1, 1, 5], x[2, 2, 7], x[3, 0, 1], x[4, 0] = 0.0, 1e30, math.inf, -math.inf, 1e-30
    if per not in (None, "token_head"):  # a NaN would make all of its group
        x = x.nan_to_num(posinf=1e30, neginf=-1e30)
    else:
        x[5, 1, 3] = math.nan
    arguments = (x, dtype, torch.tensor([[2.0], [0.5], [8.0]]) if per is None and dtype != "int8" else None)
    codes, scales = run(quantize_kv, *arguments, per=per).result
    want, want_scales = quantize_kv(*arguments, per=per)
    assert torch.equal(scales.nan_to_num(7.0), want_scales.nan_to_num(7.0))
    unlike = codes != want
    if dtype != "int8":  # a NaN has two codes
        unlike &= (codes & 0x7F) != 0x7F
    else:
        unlike &= ~scales.isnan()
    assert not unlike.any()
    back = run(dequantize_kv, want, want_scales, dtype).result
    assert torch.equal(back.nan_to_num(1e9), dequantize_kv(want, want_scales, dtype).nan_to_num(1e9))


@pytest.mark.parametrize("dtype", ["int8", *FP8])
@pytest.mark.parametrize("x_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1,), (64,), (5, 1), (2, 3, 4, 5)])
def test_the_kernels_take_any_shape_and_view(run, shape, x_dtype, dtype):
    x = randn(*shape, dtype=x_dtype) * 10
    for view in (x, x.transpose(0, -1)):
        codes, scales = run(quantize_kv, view, dtype).result
        want, want_scales = quantize_kv(view, dtype)
        assert torch.equal(codes, want)
        assert torch.equal(scales, want_scales)
        assert torch.equal(run(dequantize_kv, codes, scales, dtype).result, dequantize_kv(codes, scales, dtype))


@pytest.mark.parametrize("dtype", ["int8", *FP8])
def test_the_kernels_read_every_code(run, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(torch.int8 if dtype == "int8" else torch.uint8).view(4, 4, 16)
    back = run(dequantize_kv, codes, 0.37, dtype).result
    want = dequantize_kv_reference(codes, 0.37, dtype)
    assert torch.equal(back.nan_to_num(1e9), want.nan_to_num(1e9))
    assert torch.equal(back.isnan(), want.isnan())


@pytest.mark.parametrize("dtype", FP8)
def test_the_kernels_round_ties_to_even_and_every_number_near_one(run, dtype):
    """Every number of the format, every middle between two, and its neighbours in float32."""
    numbers = dequantize_kv_reference(torch.arange(256, dtype=torch.uint8), 1.0, dtype)
    numbers = numbers[numbers.isfinite()].sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat(
        (numbers, middles, middles.nextafter(torch.tensor(math.inf)), middles.nextafter(torch.tensor(-math.inf)))
    )
    assert torch.equal(run(quantize_kv, x, dtype).result[0], quantize_kv(x, dtype)[0])
