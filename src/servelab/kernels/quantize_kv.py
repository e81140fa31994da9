"""Keys and values in one byte: INT8 or FP8, with a scale per tensor, token, head, token and head, or channel.

A stored number is a small code; a scale, shared by a *group* of numbers, stretches the codes to the group's range:

    INT8   code = round(x / scale), -127 .. 127                       x ~ code * scale
    FP8    code = fp8(clamp(x / scale, +- largest))                   x ~ code * scale
    scale  given ("static"), or max |x| of the group / 127, 448 or 57,344

           D = 64 numbers of one token and head       codes: 64 bytes     scale
    group  [ 0.1  -3.2  0.4 ... 1.7 ]           ->    [ 4 -127 16 ... 67 ]  0.0252 (2 bytes)

INT8 has equal steps, as wide as the group's largest number makes them: one outlier of 64 makes a step 0.504, and what
is below 0.25 becomes 0. FP8 has steps that grow with the number: E4M3 keeps 3 bits behind the leading one up to 448
(relative error at most 1/16), E5M2 2 bits up to 57,344 (at most 1/8). Keys have channels that are large in every
token: a scale per channel keeps such an outlier to itself, one per token gives it to all its neighbours.

One program takes ROWS rows of D numbers (a token and head). Bytes requested a row: D e in, D out, and for its scale 2
(INT8) or 4, or D times that where a scale is given. Where a group is no row, PyTorch finds the maxima first: D e again.

Formats: https://arxiv.org/abs/2209.05433 (FP8 Formats for Deep Learning). Granularity, and why keys need it:
https://arxiv.org/abs/2402.02750 (KIVI).
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, capability, ceil_div, launch, next_power_of_2
from servelab.kernels.number import decode, encode_fp8, group_scale, int8_codes
from servelab.kernels.shape import FLOATS

# The largest finite number of each FP8 format (the "fn" E4M3 of PyTorch and of NVIDIA's GPUs has no infinity).
FP8_MAX = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
LARGEST = {"int8": 127.0, **FP8_MAX}
QUANTIZED_DTYPES = tuple(LARGEST)
# The axes of [T, G, D] that a group runs along.
GRANULARITIES = {"tensor": (0, 1, 2), "token": (1, 2), "head": (0, 2), "token_head": (2,), "channel": (0,)}

# The smallest and the largest positive float16: a scale of 0 would divide by 0, one of infinity would lose the group.
SCALE_MIN, SCALE_MAX = 2.0**-24, 65504.0


def quantize_kv_reference(
    x: Tensor, dtype: str, scale: Tensor | float | None = None, *, per: str | None = None
) -> tuple[Tensor, Tensor]:
    """What `quantize_kv` returns, in plain PyTorch."""
    numbers = x.float()  # [..., D]
    scales = group_scales(x, dtype, per) if scale is None else as_scales(scale, x)  # broadcasts to [..., D]
    if dtype == "int8":
        codes = (numbers / scales).nan_to_num_(0.0, posinf=127.0, neginf=-127.0)  # [..., D]
        return codes.round_().clamp_(-127.0, 127.0).to(torch.int8), scales
    limit = FP8_MAX[dtype]
    # The clamp is ours: a cast alone saturates in one version and format, and gives infinity in another.
    return (numbers / scales).clamp(-limit, limit).to(_float8(dtype)).view(torch.uint8), scales


def dequantize_kv_reference(stored: Tensor, scale: Tensor | float, dtype: str) -> Tensor:
    """What `dequantize_kv` returns, in plain PyTorch."""
    codes = stored if dtype == "int8" else stored.view(_float8(dtype))  # [..., D]
    return codes.float() * as_scales(scale, stored)  # [..., D]


@triton.jit
def _quantize_kv(
    x, scales, codes, new_scales,  # [N, G, D], broadcast to [N, G, D], [N, G, D], [N, G]
    token_stride, head_stride, dim_stride, scale_token_stride, scale_head_stride, scale_dim_stride, num_rows, num_heads,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, FORMAT: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token, head = row // num_heads, row % num_heads
    dims = tl.arange(0, WIDTH)
    mask = (row < num_rows)[:, None] & (dims < D)[None, :]
    places = (token * token_stride + head * head_stride)[:, None] + dims[None, :] * dim_stride
    numbers = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)
    if GIVEN:
        of_rows = token * scale_token_stride + head * scale_head_stride
        scale_places = of_rows[:, None] + dims[None, :] * scale_dim_stride
        scale = tl.load(scales + scale_places, mask=mask, other=1.0).to(tl.float32)
    else:
        row_scale = group_scale(numbers, FORMAT)
        tl.store(new_scales + row, row_scale, mask=row < num_rows)
        scale = row_scale.to(tl.float32)[:, None]
    if FORMAT == "int8":
        rounded = int8_codes(numbers, scale)
    else:
        rounded = encode_fp8(tl.div_rn(numbers, tl.broadcast_to(scale, ROWS, WIDTH)), FORMAT)
    tl.store(codes + row[:, None] * D + dims[None, :], rounded, mask=mask)


@triton.jit
def _dequantize_kv(
    codes, scales, out, token_stride, head_stride, dim_stride, scale_token_stride, scale_head_stride, scale_dim_stride,
    num_rows, num_heads,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, FORMAT: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token, head = row // num_heads, row % num_heads
    dims = tl.arange(0, WIDTH)
    mask = (row < num_rows)[:, None] & (dims < D)[None, :]
    places = (token * token_stride + head * head_stride)[:, None] + dims[None, :] * dim_stride
    stored = tl.load(codes + places, mask=mask, other=0)
    of_rows = token * scale_token_stride + head * scale_head_stride
    scale_places = of_rows[:, None] + dims[None, :] * scale_dim_stride
    scale = tl.load(scales + scale_places, mask=mask, other=1.0).to(tl.float32)
    numbers = decode(stored, FORMAT, NATIVE).to(tl.float32) * scale
    tl.store(out + row[:, None] * D + dims[None, :], numbers, mask=mask)


ROWS = 8  # groups of D numbers a program; not timed on a GPU yet


def quantize_kv(
    x: Tensor,
    dtype: str,
    scale: Tensor | float | None = None,
    *,
    per: str | None = None,
    scale_is_checked: bool = False,
) -> tuple[Tensor, Tensor]:
    """Round x [..., D], floating-point, to codes [..., D], and return them with the scale that they were divided by.

    dtype: "int8", codes int8; "fp8_e4m3" or "fp8_e5m2", codes as uint8 (the bits of the float8).
    scale: static, a positive number or a tensor that broadcasts to x, such as [G, 1] for x [T, G, D].
    per: without one, what has a scale of its own, from its largest number: "token_head" (each D numbers, the default
        for INT8), and for x [T, G, D] "tensor", "token", "head", or "channel" (each of the G D numbers of a token, over
        all tokens). FP8 without scale and per is static with scale 1.
    scale_is_checked: the scale is known to be positive and finite: it is not looked at again, for which a GPU would
        have to be waited for.

    The scale returned broadcasts to x, [T, G, 1] for "token_head". Computed scales are float16 for INT8, as a cache
    keeps them, and float32 for FP8; a static scale comes back as float32.
    INT8: a group of zeros becomes zeros exactly. Every number is met within half a step (scale / 2), or within 4e-6
    where that is more: for a largest number below 0.008, float16 has few digits left for the scale. What lies beyond
    8.3e6 (127 times the largest float16), infinity included, becomes that number, and leaves the rest of its group no
    digits. A group with a NaN becomes NaN as a whole: the fault stays visible, and in its group (with a static scale a
    NaN becomes 0, for which INT8 has no code).
    FP8: what lies beyond the largest finite number, infinity included, becomes that number; NaN stays NaN, and has no
    part in a scale.

    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for a dtype, a shape,
    a granularity or a scale that does not fit, and for a scale that is not positive and finite.
    """
    _check_dtype(dtype)
    if x.dtype not in (*FLOATS, torch.float64) or x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"expected x as floating-point numbers [..., D], got {x.dtype} {list(x.shape)}")
    if scale is not None:
        if per is not None:
            raise ValueError(f"expected a scale or per, got both, with per={per!r}")
        _check_scale(scale, x, scale_is_checked)
    elif per is None:
        scale, per = (None, "token_head") if dtype == "int8" else (1.0, None)
    elif per not in GRANULARITIES or (per != "token_head" and x.dim() != 3):
        raise ValueError(f"expected per in {tuple(GRANULARITIES)} for x [T, G, D], got {per!r} for {list(x.shape)}")
    if not can_launch(x) or x.dtype == torch.float64:
        return quantize_kv_reference(x, dtype, scale, per=per)
    own = per == "token_head"  # found in the pass that rounds
    given = None if own else group_scales(x, dtype, per) if scale is None else as_scales(scale, x)
    codes = torch.empty(x.shape, dtype=torch.int8 if dtype == "int8" else torch.uint8, device=x.device)
    new_scales = torch.empty((*x.shape[:-1], 1), dtype=scale_dtype(dtype), device=x.device)
    scales = new_scales if given is None else given
    _launch(_quantize_kv, x, scales, codes, new_scales, FORMAT=dtype, GIVEN=given is not None)
    return codes, scales


def dequantize_kv(stored: Tensor, scale: Tensor | float, dtype: str, *, scale_is_checked: bool = False) -> Tensor:
    """The numbers [..., D] in float32 that codes [..., D] stand for; scale as `quantize_kv` returned it.

    A scale of INT8 may be NaN: so is its group. Those of FP8 are checked as `quantize_kv` does.
    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for codes or scales
    that do not fit.
    """
    _check_dtype(dtype)
    expected = torch.int8 if dtype == "int8" else torch.uint8
    if stored.dtype != expected or stored.dim() < 1 or stored.shape[-1] < 1:
        raise ValueError(f"expected codes as {expected} [..., D], got {stored.dtype} {list(stored.shape)}")
    _check_scale(scale, stored, scale_is_checked or dtype == "int8")
    if not can_launch(stored):
        if dtype == "fp8_e4m3" and stored.is_cpu:
            return _look_up_e4m3(stored, scale)
        return dequantize_kv_reference(stored, scale, dtype)
    out = torch.empty(stored.shape, dtype=torch.float32, device=stored.device)
    native = capability(stored.device) >= 89
    _launch(_dequantize_kv, stored, as_scales(scale, stored), out, FORMAT=dtype, NATIVE=native)
    return out


def _launch(kernel: Any, x: Tensor, scales: Tensor, *written: Tensor, **constants: object) -> None:
    """A program for each ROWS groups of x [..., D]; scales broadcast to x. `written` is contiguous."""
    rows = x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1])  # [N, G, D]
    scales = scales.expand(x.shape)
    scales = scales if x.dim() == 3 else scales.reshape(rows.shape)
    num_tokens, num_heads, head_dim = rows.shape
    num_rows = num_tokens * num_heads
    launch(
        kernel,
        (ceil_div(num_rows, ROWS),),
        x.device,
        *(rows, scales, *written, *rows.stride(), *scales.stride(), num_rows, num_heads),
        D=head_dim,
        WIDTH=next_power_of_2(head_dim),
        ROWS=ROWS,
        num_warps=4,
        **constants,
    )


def group_scales(x: Tensor, dtype: str, per: str | None) -> Tensor:
    """The scale of every group of x, so that its largest number gets the largest code; broadcasts to x."""
    axes = (-1,) if per in (None, "token_head") else GRANULARITIES[per]
    sizes = x.float().abs() if dtype == "int8" else x.float().abs().nan_to_num(0.0, posinf=torch.inf)
    largest = sizes.amax(dim=axes, keepdim=True) if x.numel() else sizes.sum(dim=axes, keepdim=True)
    # Rounded before it divides: the codes must fit the scale that is stored, not the one that was meant.
    return (largest / LARGEST[dtype]).clamp_(SCALE_MIN, SCALE_MAX).to(scale_dtype(dtype))


def as_scales(scale: Tensor | float, x: Tensor) -> Tensor:
    """A scale as a tensor beside x that broadcasts to it: float32, or float16 as it came."""
    if isinstance(scale, Tensor) and scale.dtype == torch.float16:
        return scale.to(x.device)
    return torch.as_tensor(scale, dtype=torch.float32, device=x.device)


def scale_dtype(dtype: str) -> torch.dtype:
    return torch.float16 if dtype == "int8" else torch.float32


def _look_up_e4m3(stored: Tensor, scale: Tensor | float) -> Tensor:
    """The reference's numbers from a table of all 256. PyTorch 2.13 converts E4M3 on a CPU one by one: 5 times slower
    (288,000 numbers, one core of an EPYC Zen 3, 2026-11-29: 1,240 against 220 us)."""
    numbers = _e4m3_numbers().index_select(0, stored.flatten().int()).view(stored.shape)  # [..., D]
    return numbers.mul_(as_scales(scale, stored))


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


def _check_scale(scale: Tensor | float, x: Tensor, is_checked: bool) -> None:
    """A number, or a tensor that broadcasts to x."""
    shape = tuple(scale.shape) if isinstance(scale, Tensor) else ()
    aligned = tuple(x.shape)[x.dim() - len(shape) :] if len(shape) <= x.dim() else ()
    if len(aligned) != len(shape) or any(have not in (1, want) for have, want in zip(shape, aligned, strict=True)):
        raise ValueError(f"expected a scale that broadcasts to {list(x.shape)}, got {list(shape)}")
    if not is_checked:
        check_scales(scale)
