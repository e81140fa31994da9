"""Keys and values in one byte: INT8 with a scale per token and head, FP8 with a static scale.

A stored number is a small code; a scale, shared by the D numbers of a *group* (one token, one head), stretches the
codes to the group's range:

    INT8   scale = max |x| / 127, rounded to float16      code = round(x / scale), -127 .. 127      x ~ code * scale
    FP8    scale given, float32                           code = fp8(clamp(x / scale, +-largest))   x ~ code * scale

             D = 64 numbers                    codes: 64 bytes     scale
    group  [ 0.1  -3.2  0.4 ... 1.7 ]    ->    [ 4 -127 16 ... 67 ]  0.0252 (2 bytes)        INT8

INT8 has equal steps, as wide as the group's largest number makes them: one outlier of 64 makes a step 0.504, and what
is below 0.25 becomes 0. FP8 has steps that grow with the number: E4M3 keeps 3 bits behind the leading one up to 448
(relative error at most 1/16), E5M2 2 bits up to 57,344 (at most 1/8).

Bytes a group: D + 2 for INT8, D for FP8, against 2 D at 16 bit. Work: D divisions and one maximum (INT8).

Formats: https://arxiv.org/abs/2209.05433 (FP8 Formats for Deep Learning). A group's own scale, and why keys need it:
https://arxiv.org/abs/2402.02750 (KIVI).
"""

from functools import cache

import torch
from torch import Tensor

# The largest finite number of each FP8 format (the "fn" E4M3 of PyTorch and of NVIDIA's GPUs has no infinity).
FP8_MAX = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
QUANTIZED_DTYPES = ("int8", *FP8_MAX)

INT8_MAX = 127.0
# The smallest and the largest positive float16: a scale of 0 would divide by 0, one of infinity would lose the group.
SCALE_MIN, SCALE_MAX = 2.0**-24, 65504.0


def quantize_kv_reference(x: Tensor, dtype: str, scale: Tensor | float | None = None) -> tuple[Tensor, Tensor]:
    """Round x [..., D] to codes [..., D], and return them with the scale that they were divided by.

    dtype: "int8": codes int8, scale [...] float16, its own for each group of D numbers; `scale` must be None.
        "fp8_e4m3", "fp8_e5m2": codes as uint8 (the bits of the float8); scale float32, as given: a number, or a
        tensor that broadcasts to [...], such as [G] for x [T, G, D]. Default 1.0.

    INT8: a group of zeros becomes zeros exactly. Every number is met within half a step (scale / 2), or within 4e-6
    where that is more: for a largest number below 0.008, float16 has few digits left for the scale. What lies beyond
    8.3e6 (127 times the largest float16), infinity included, becomes that number, and leaves the rest of its group no
    digits. A group with a NaN becomes NaN as a whole: the fault stays visible, and in its group.
    FP8: what lies beyond the largest finite number, infinity included, becomes that number; NaN stays NaN.
    """
    if dtype == "int8":
        numbers = x.float()  # [..., D]
        largest = numbers.abs().amax(dim=-1, keepdim=True)  # [..., 1]
        # Rounded before it divides: the codes must fit the scale that is stored, not the one that was meant.
        scales = (largest / INT8_MAX).clamp_(SCALE_MIN, SCALE_MAX).to(torch.float16)  # [..., 1]
        codes = (numbers / scales).round_().clamp_(-INT8_MAX, INT8_MAX)  # [..., D]
        return codes.to(torch.int8), scales.squeeze(-1)
    static = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32, device=x.device)
    limit = FP8_MAX[dtype]
    # The clamp is ours: a cast alone saturates in one version and format, and gives infinity in another.
    scaled = (x.float() / static[..., None]).clamp(-limit, limit)  # [..., D]
    return scaled.to(_float8(dtype)).view(torch.uint8), static


def dequantize_kv_reference(stored: Tensor, scale: Tensor | float, dtype: str) -> Tensor:
    """The numbers [..., D] in float32 that codes [..., D] stand for; scale as `quantize_kv_reference` returned it."""
    codes = stored if dtype == "int8" else stored.view(_float8(dtype))  # [..., D]
    scales = torch.as_tensor(scale, dtype=torch.float32, device=stored.device)  # broadcasts to [...]
    return codes.float() * scales[..., None]  # [..., D]


def quantize_kv(
    x: Tensor, dtype: str, scale: Tensor | float | None = None, *, scale_is_checked: bool = False
) -> tuple[Tensor, Tensor]:
    """`quantize_kv_reference`, checked. Raises ValueError for a dtype, a shape or a scale that does not fit, and for a
    scale that is not positive and finite.

    scale_is_checked: the scale is known to be: it is not looked at again, for which a GPU would have to be waited for.
    """
    _check_dtype(dtype)
    if not x.is_floating_point() or x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"expected x as floating-point numbers [..., D], got {x.dtype} {list(x.shape)}")
    if dtype == "int8" and scale is not None:
        raise ValueError("expected no scale for int8, which has one for each group, got one")
    if scale is not None:
        _check_shape(scale, x)
        if not scale_is_checked:
            check_scales(scale)
    return quantize_kv_reference(x, dtype, scale)


def dequantize_kv(stored: Tensor, scale: Tensor | float, dtype: str, *, scale_is_checked: bool = False) -> Tensor:
    """`dequantize_kv_reference`, checked as `quantize_kv` is. An INT8 group's own scale may be NaN: so is the group."""
    _check_dtype(dtype)
    expected = torch.int8 if dtype == "int8" else torch.uint8
    if stored.dtype != expected or stored.dim() < 1:
        raise ValueError(f"expected codes as {expected} [..., D], got {stored.dtype} {list(stored.shape)}")
    _check_shape(scale, stored)
    if dtype != "int8" and not scale_is_checked:
        check_scales(scale)
    if dtype == "fp8_e4m3" and stored.device.type == "cpu":
        return _look_up_e4m3(stored, scale)
    return dequantize_kv_reference(stored, scale, dtype)


def _look_up_e4m3(stored: Tensor, scale: Tensor | float) -> Tensor:
    """The reference's numbers from a table of all 256. PyTorch 2.13 converts E4M3 on a CPU one by one: 5 times slower
    (288,000 numbers, one core of an EPYC Zen 3, 2026-11-29: 1,240 against 220 us)."""
    numbers = _e4m3_numbers().index_select(0, stored.flatten().int()).view(stored.shape)  # [..., D]
    return numbers.mul_(torch.as_tensor(scale, dtype=torch.float32)[..., None])


@cache
def _e4m3_numbers() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # [256]


def _float8(dtype: str) -> torch.dtype:
    return torch.float8_e4m3fn if dtype == "fp8_e4m3" else torch.float8_e5m2


def _check_dtype(dtype: str) -> None:
    if dtype not in QUANTIZED_DTYPES:
        raise ValueError(f"expected dtype in {QUANTIZED_DTYPES}, got {dtype!r}")


def check_scales(scales: Tensor | float, what: str = "scales") -> None:
    """Raise ValueError unless all static scales are positive and finite, as the float32 numbers that they become."""
    numbers = torch.as_tensor(scales, dtype=torch.float32)
    if not (numbers.isfinite() & (numbers > 0)).all():
        raise ValueError(f"expected positive, finite {what}, got {numbers.min().item()} .. {numbers.max().item()}")


def _check_shape(scale: Tensor | float, x: Tensor) -> None:
    shape = tuple(scale.shape) if isinstance(scale, Tensor) else ()
    groups = tuple(x.shape[:-1])
    aligned = groups[len(groups) - len(shape) :]
    if len(shape) > len(groups) or any(have not in (1, want) for have, want in zip(shape, aligned, strict=True)):
        raise ValueError(f"expected a scale that broadcasts to {list(groups)}, one a group of D, got {list(shape)}")
