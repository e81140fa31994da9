"""The number formats of a KV cache, one vector of D numbers at a time: rounded when written, widened when read.

A float of fewer bits is a float32 with bits left out:

    float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm     1 + 8 + 23 bits, the exponent of 1.0 is 127
    float16   s eeeee mmmmmmmmmm                     1 + 5 + 10                               15
    E5M2      s eeeee mm                             1 + 5 + 2    the upper byte of a float16 15
    E4M3      s eeee mmm                             1 + 4 + 3                                 7

Put into a float32's place, exponent and mantissa mean the same number times 2 ** (bias - 127), subnormals included.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from servelab.ops.compiled.kernel import FAST_MATH
from servelab.ops.compiled.vector import (
    FLOATS,
    INT64,
    LANES,
    WORDS,
    as_bytes,
    as_floats,
    as_halves,
    as_words,
    load,
    splat,
    store,
)

FORMATS = ("float32", "bfloat16", "float16", "int8", "fp8_e4m3", "fp8_e5m2")
FLOAT32, BFLOAT16, FLOAT16, INT8, E4M3, E5M2 = range(6)
BYTES = (4, 2, 2, 1, 1, 1)

SIGN, MAGNITUDE, INFINITY = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
ONE, TWO_112, TWO_120 = np.float32(1.0), np.float32(2.0**112), np.float32(2.0**120)
# As in `servelab.kernels.quantize_kv`.
INT8_MAX, E4M3_MAX, E5M2_MAX = np.float32(127.0), np.float32(448.0), np.float32(57344.0)
SCALE_MIN, SCALE_MAX = np.float32(2.0**-24), np.float32(65504.0)
HALF_NAN = np.uint16(0x7E00)


def make_widen(kind: int) -> Any:
    """A compiled function that widens numbers of one format, 8 at a time: ``widen(address, count, scale, out)``.

    count: of numbers, a multiple of 8, at least 8. The processor turns float16 into float32 itself.
    """

    @intrinsic
    def widen(typing_context: Any, address: Any, count: Any, scale: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, count, scale, out = arguments
            before = builder.block
            loop, done = builder.append_basic_block("numbers"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            index = builder.phi(INT64)
            here = builder.add(address, builder.mul(index, INT64(BYTES[kind])))
            wide = widen_lanes(builder, kind, here, splat(builder, scale))
            store(builder, wide, builder.add(out, builder.mul(index, INT64(4))))
            following = builder.add(index, INT64(LANES))
            index.add_incoming(INT64(0), before)
            index.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32, types.int64), generate

    return widen


def widen_lanes(builder: Any, kind: int, address: Any, scale: Any) -> Any:
    """8 numbers of a format as float32."""
    halves, codes = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(8), LANES)
    half_floats = ir.VectorType(ir.HalfType(), LANES)
    if kind == FLOAT32:
        return load(builder, FLOATS, address)
    if kind == BFLOAT16:
        words = builder.zext(load(builder, halves, address, align=2), WORDS)
        return builder.bitcast(builder.shl(words, WORDS([16] * LANES)), FLOATS)
    if kind == FLOAT16:
        return builder.fpext(builder.bitcast(load(builder, halves, address, align=2), half_floats), FLOATS)
    stored = load(builder, codes, address, align=1)
    if kind == INT8:
        return builder.fmul(builder.sitofp(stored, FLOATS), scale)
    wide = builder.zext(stored, halves)
    bits = builder.shl(wide, halves([8] * LANES))  # E5M2: a float16 without its lower byte
    if kind == E4M3:  # a float16 with one exponent bit less, which makes it 2 ** 8 times smaller
        magnitude = builder.and_(wide, halves([0x7F] * LANES))
        moved = builder.shl(magnitude, halves([7] * LANES))
        nan = builder.icmp_unsigned("==", magnitude, halves([0x7F] * LANES))
        moved = builder.select(nan, halves([0x7E00] * LANES), moved)
        bits = builder.or_(builder.and_(bits, halves([0x8000] * LANES)), moved)
        scale = builder.fmul(scale, FLOATS([256.0] * LANES))
    return builder.fmul(builder.fpext(builder.bitcast(bits, half_floats), FLOATS), scale)


widen_float32, widen_bfloat16, widen_float16, widen_int8, widen_e4m3_codes, widen_e5m2_codes = map(make_widen, range(6))


@njit(fastmath=FAST_MATH)
def read_vector(kind: Any, address: Any, scale: Any, D: Any, out: Any) -> None:
    """Widen D stored numbers at `address` to float32 at the address `out`, times `scale` where they are quantized."""
    whole = D // 8 * 8
    if whole > 0:
        if kind == FLOAT32:
            widen_float32(address, whole, scale, out)
        elif kind == BFLOAT16:
            widen_bfloat16(address, whole, scale, out)
        elif kind == FLOAT16:
            widen_float16(address, whole, scale, out)
        elif kind == INT8:
            widen_int8(address, whole, scale, out)
        elif kind == E4M3:
            widen_e4m3_codes(address, whole, scale, out)
        else:
            widen_e5m2_codes(address, whole, scale, out)
    if whole < D:
        read_rest(kind, address, scale, whole, D, out)


@njit(fastmath=FAST_MATH)
def read_rest(kind: Any, address: Any, scale: Any, start: Any, D: Any, out: Any) -> None:
    """Numbers start..D-1 of a vector whose length is no multiple of 8, one at a time."""
    target = carray(as_floats(out), D)
    for d in range(start, D):
        if kind == FLOAT32:
            target[d] = carray(as_floats(address), D)[d]
        elif kind == BFLOAT16:
            target[d] = np.uint32(np.uint32(carray(as_halves(address), D)[d]) << np.uint32(16)).view(np.float32)
        elif kind == FLOAT16:
            target[d] = widen_half(np.uint32(carray(as_halves(address), D)[d]))
        else:
            code = np.uint32(carray(as_bytes(address), D)[d])
            if kind == INT8:
                target[d] = np.float32(np.int8(code)) * scale
            elif kind == E4M3:
                target[d] = widen_e4m3(code) * scale
            else:
                target[d] = widen_half(np.uint32(code << np.uint32(8))) * scale


@njit(fastmath=FAST_MATH)
def write_vector(kind: Any, source: Any, scale: Any, D: Any, address: Any) -> None:
    """Round D float32 at the address `source` to the format, divided by `scale` before, and put them at `address`."""
    x = carray(as_floats(source), D)
    if kind == FLOAT32:
        floats = carray(as_floats(address), D)
        for d in range(D):
            floats[d] = x[d]
    elif kind == BFLOAT16:
        halves = carray(as_halves(address), D)
        for d in range(D):
            halves[d] = narrow_bfloat16(np.float32(x[d]).view(np.uint32))
    elif kind == FLOAT16:
        halves = carray(as_halves(address), D)
        for d in range(D):
            halves[d] = narrow_half(np.float32(x[d]).view(np.uint32))
    elif kind == INT8:
        codes = carray(as_bytes(address), D)
        for d in range(D):
            steps = np.rint(clamp(x[d] / scale, INT8_MAX))
            codes[d] = np.uint8(np.int8(steps)) if steps == steps else np.uint8(0)
    elif kind == E4M3:
        codes = carray(as_bytes(address), D)
        for d in range(D):
            codes[d] = narrow_float8(np.float32(clamp(x[d] / scale, E4M3_MAX)).view(np.uint32), 7, 3)
    else:
        codes = carray(as_bytes(address), D)
        for d in range(D):
            codes[d] = narrow_float8(np.float32(clamp(x[d] / scale, E5M2_MAX)).view(np.uint32), 15, 2)


@njit(fastmath=FAST_MATH)
def int8_scale(source: Any, D: Any) -> Any:
    """What D float32 at an address are divided by, as a float16's bits: largest / 127, NaN where one is NaN."""
    bits = carray(as_words(source), D)
    largest = np.uint32(0)
    for d in range(D):
        largest = max(largest, bits[d] & MAGNITUDE)
    if largest > INFINITY:
        return HALF_NAN
    scale = np.uint32(largest).view(np.float32) / INT8_MAX
    return narrow_half(np.float32(min(max(scale, SCALE_MIN), SCALE_MAX)).view(np.uint32))


@njit(fastmath=FAST_MATH)
def clamp(x: Any, limit: Any) -> Any:
    """x within +-limit; NaN stays NaN."""
    low = -limit if x < -limit else x
    return limit if low > limit else low


@njit(fastmath=FAST_MATH)
def widen_half(bits: Any) -> Any:
    """The float32 of a float16's bits."""
    magnitude = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
    number = np.uint32(np.float32(np.uint32(magnitude).view(np.float32) * TWO_112).view(np.uint32))
    if magnitude >= np.uint32(0x0F800000):  # an exponent of ones: infinity or NaN
        number = magnitude | INFINITY
    return np.uint32(number | np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)


@njit(fastmath=FAST_MATH)
def widen_e4m3(bits: Any) -> Any:
    """The float32 of an E4M3's bits. There is no infinity; all ones is NaN."""
    magnitude = np.uint32((bits & np.uint32(0x7F)) << np.uint32(20))
    number = np.uint32(np.float32(np.uint32(magnitude).view(np.float32) * TWO_120).view(np.uint32))
    if magnitude == np.uint32(0x07F00000):
        number = magnitude | INFINITY
    return np.uint32(number | np.uint32((bits & np.uint32(0x80)) << np.uint32(24))).view(np.float32)


@njit(fastmath=FAST_MATH)
def narrow(magnitude: Any, bias: Any, mantissa: Any) -> Any:
    """Exponent and mantissa of a positive finite float32 with fewer bits, rounded to nearest, ties to even."""
    dropped = np.uint32(np.uint32(23) - mantissa)
    lost = np.uint32(np.uint32(127) - bias)
    if magnitude < np.uint32(np.uint32(lost + np.uint32(1)) << np.uint32(23)):
        # Subnormal: added to a number whose last place is the format's smallest step, it is rounded to such steps.
        step = np.uint32(np.uint32(lost + dropped + np.uint32(1)) << np.uint32(23))
        total = np.float32(np.uint32(magnitude).view(np.float32) + np.uint32(step).view(np.float32))
        return np.uint32(np.float32(total).view(np.uint32) - step)
    odd = np.uint32(magnitude >> dropped) & np.uint32(1)
    half = np.uint32(np.uint32(np.uint32(1) << np.uint32(dropped - np.uint32(1))) - np.uint32(1) + odd)
    return np.uint32(np.uint32(magnitude - np.uint32(lost << np.uint32(23)) + half) >> dropped)


@njit(fastmath=FAST_MATH)
def narrow_half(bits: Any) -> Any:
    """A float16's bits of a float32's bits; beyond 65,520 infinity."""
    magnitude = np.uint32(bits & MAGNITUDE)
    sign = np.uint32(np.uint32(bits & SIGN) >> np.uint32(16))
    if magnitude > INFINITY:
        return np.uint16(sign | np.uint32(0x7E00))
    if magnitude >= np.uint32(0x47800000):
        return np.uint16(sign | np.uint32(0x7C00))
    return np.uint16(sign | narrow(magnitude, np.uint32(15), np.uint32(10)))


@njit(fastmath=FAST_MATH)
def narrow_float8(bits: Any, bias: Any, mantissa: Any) -> Any:
    """An FP8's bits of a float32's bits within the format's range. E4M3 has bias 7 and 3 bits, E5M2 15 and 2."""
    magnitude = np.uint32(bits & MAGNITUDE)
    sign = np.uint32(np.uint32(bits & SIGN) >> np.uint32(24))
    if magnitude > INFINITY:
        return np.uint8(sign | np.uint32(0x7F))
    return np.uint8(sign | narrow(magnitude, np.uint32(bias), np.uint32(mantissa)))


@njit(fastmath=FAST_MATH)
def narrow_bfloat16(bits: Any) -> Any:
    """A bfloat16's bits of a float32's bits."""
    if np.uint32(bits & MAGNITUDE) > INFINITY:
        return np.uint16(0x7FC0)
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@njit(fastmath=FAST_MATH)
def read_scale(kind: Any, address: Any) -> Any:
    """The scale at an address: float16 for INT8, float32 for FP8; the other formats have none."""
    if kind < INT8:
        return np.float32(1.0)
    if kind == INT8:
        return widen_half(np.uint32(carray(as_halves(address), 1)[0]))
    return carray(as_floats(address), 1)[0]
