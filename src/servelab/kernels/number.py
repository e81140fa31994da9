"""FP8 numbers and rounding as parts of kernels, by integer operations where a GPU has no instruction for them.

    E4M3   s eeee mmm   bias 7    largest 448      NaN s 1111 111, no infinity   (hardware from sm_89 on)
    E5M2   s eeeee mm   bias 15   largest 57,344   the upper byte of a float16

Rounding is to the nearest, ties to even, in every case (https://arxiv.org/abs/2209.05433).
"""

from servelab.kernels.language import tl, triton

# 1.5 * 2**23: float32 numbers near it are 1 apart, so that adding it rounds to a whole number.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def round_to_whole(x):
    """float32 below 2**22 -> the nearest whole number, ties to even."""
    return (x + ROUNDER) - ROUNDER


@triton.jit
def encode_fp8(x, FORMAT: tl.constexpr):
    """float32 -> the bits (uint8) of FORMAT, "fp8_e4m3" or "fp8_e5m2". What is too large becomes the largest number."""
    MANTISSA: tl.constexpr = 3 if FORMAT == "fp8_e4m3" else 2
    BIAS: tl.constexpr = 7 if FORMAT == "fp8_e4m3" else 15
    LARGEST: tl.constexpr = 448.0 if FORMAT == "fp8_e4m3" else 57344.0
    SHIFT: tl.constexpr = 23 - MANTISSA
    # float32 numbers near this one are as far apart as the subnormal numbers of FORMAT: adding it rounds to them.
    STEPS: tl.constexpr = 2.0 ** (23 + 1 - BIAS - MANTISSA)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    size = tl.minimum(tl.abs(x), LARGEST)
    bits = size.to(tl.int32, bitcast=True)
    # Half a step is added, a little less where the last bit that stays is even; then the exponent's bias is changed.
    rounded = bits + ((1 << (SHIFT - 1)) - 1) + ((bits >> SHIFT) & 1)
    normal = (rounded >> SHIFT) - ((127 - BIAS) << MANTISSA)
    subnormal = (size + STEPS).to(tl.int32, bitcast=True) - tl.full([], STEPS, tl.float32).to(tl.int32, bitcast=True)
    code = tl.where(size < 2.0 ** (1 - BIAS), subnormal, normal)
    code = tl.where(x == x, code, 0x7F)
    return (sign | code).to(tl.uint8)


@triton.jit
def decode_fp8(code, FORMAT: tl.constexpr, NATIVE: tl.constexpr):
    """The bits (uint8) of FORMAT -> float16, which holds all its numbers. NATIVE: the GPU converts E4M3 itself."""
    if FORMAT == "fp8_e5m2":
        number = (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    elif NATIVE:
        number = code.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        bits = code.to(tl.uint16)
        # One place lower than in a float16, whose bias is 8 more: as a float16 the number is 2**8 times too small.
        moved = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        number = tl.where((bits & 0x7F) == 0x7F, float("nan"), moved * 256.0).to(tl.float16)
    return number


@triton.jit
def decode(codes, FORMAT: tl.constexpr, NATIVE: tl.constexpr):
    """What the KV cache holds -> numbers without their scale; "auto" is left as it is."""
    if FORMAT == "auto":
        numbers = codes
    elif FORMAT == "int8":
        numbers = codes.to(tl.float16)
    else:
        numbers = decode_fp8(codes, FORMAT, NATIVE)
    return numbers


# The smallest and the largest positive float16: a scale of 0 would divide by 0, one of infinity would lose the group.
SCALE_MIN = tl.constexpr(2.0**-24)
SCALE_MAX = tl.constexpr(65504.0)
INT8_MAX = tl.constexpr(127.0)


@triton.jit
def group_scale(numbers, FORMAT: tl.constexpr):
    """The scale of each row, float32 [..., D] with 0 where it is padded: float16 for INT8, float32 for FP8.

    A NaN makes INT8's scale NaN, for there is no code for it; in FP8 there is, and the scale leaves it out.
    """
    LARGEST: tl.constexpr = 127.0 if FORMAT == "int8" else 448.0 if FORMAT == "fp8_e4m3" else 57344.0
    axis: tl.constexpr = len(numbers.shape) - 1
    largest = tl.max(tl.where(numbers == numbers, tl.abs(numbers), 0.0), axis)
    scale = tl.div_rn(largest, tl.full([], LARGEST, tl.float32))
    scale = tl.minimum(tl.maximum(scale, SCALE_MIN), SCALE_MAX)
    if FORMAT == "int8":
        has_nan = tl.max((numbers != numbers).to(tl.int32), axis) > 0
        scale = tl.where(has_nan, float("nan"), scale).to(tl.float16)
    return scale


@triton.jit
def int8_codes(numbers, scale):
    """float32 numbers -> int8. scale: float32, as it is stored: rounded before it divides. NaN becomes 0."""
    codes = tl.div_rn(numbers, tl.broadcast_to(scale, numbers.shape))
    codes = tl.where(codes == codes, codes, 0.0)
    return round_to_whole(tl.minimum(tl.maximum(codes, -INT8_MAX), INT8_MAX)).to(tl.int8)
