"""The few instructions that numba does not offer: vectors of 8 floats, memory by address, an atomic counter.

Each function writes LLVM's intermediate code, with Python loops unrolled as it is written. Addresses are int64.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
LANES = 8
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)

MOST_ROWS = 6  # 6 rows x 2 vectors of sums, 2 vectors of weights and one number of x fill 16 registers

# 2 ** f = 1 + 0.69.. f + ..., the highest power first (Cephes' exp2f, S. Moshier)
EXP2 = (
    *(1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3),
    *(5.550332471162809e-2, 2.402264791363012e-1, 6.931472028550421e-1, 1.0),
)

# A transposition in three rounds: of rows r and r + distance, these numbers (8.. are those of the second row) make two
# new rows. The processor has one instruction for each; at the end the columns stand in the order below.
UNPACK = (
    (1, ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])),
    (2, ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])),
    (4, ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])),
)
UNPACKED = (0, 2, 1, 3, 4, 6, 5, 7)


def make_product(held: str, accumulate: bool, ahead: int = 0) -> Any:
    """A compiled ``out[rows, 16] = x[rows, k] @ w[k, 16]`` for 1 to 6 rows, the loop that all the time is spent in.

        product(rows, w, w_stride, k, x, x_stride, out, out_stride, factors)

    Strides are bytes from one row to the next. Each sum runs over k in order and in one register, whatever `rows` is:
    a token's result does not depend on who is computed with it.

    held: "float32", or "bfloat16", where a 32-bit word holds columns i (low half) and i + 8 (high half) of w:
        a shift or a mask makes a float32 of each.
    accumulate: add to ``out * factors[row]`` instead of to 0; `factors` is the address of one float a row.
    ahead: ask for weights so many bytes before they are read.
    """

    @intrinsic
    def product(  # the arguments of the compiled function, after numba's own
        typing_context: Any,
        rows: Any,
        w: Any,
        w_stride: Any,
        k: Any,
        x: Any,
        x_stride: Any,
        out: Any,
        out_stride: Any,
        factors: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            after = builder.append_basic_block("after")
            switch = builder.switch(arguments[0], after)
            for rows in range(1, MOST_ROWS + 1):
                block = builder.append_basic_block(f"rows_{rows}")
                switch.add_case(INT64(rows), block)
                builder.position_at_end(block)
                write_tile(builder, rows, held, accumulate, ahead, *arguments[1:])
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return product


def write_tile(
    builder: Any,
    rows: int,
    held: str,
    accumulate: bool,
    ahead: int,
    w: Any,
    w_stride: Any,
    k: Any,
    x: Any,
    x_stride: Any,
    out: Any,
    out_stride: Any,
    factors: Any,
) -> None:
    """The product for one number of rows."""
    x_rows = [builder.add(x, builder.mul(x_stride, INT64(row))) for row in range(rows)]
    out_rows = [builder.add(out, builder.mul(out_stride, INT64(row))) for row in range(rows)]
    start = [[FLOATS([0.0] * LANES)] * 2 for _ in range(rows)]
    if accumulate:
        for row in range(rows):
            factor = splat(builder, load(builder, FLOAT, factors, 4 * row))
            start[row] = [builder.fmul(load(builder, FLOATS, out_rows[row], 32 * half), factor) for half in range(2)]
    before = builder.block
    loop, done = builder.append_basic_block("columns"), builder.append_basic_block("done")
    builder.branch(loop)

    builder.position_at_end(loop)
    step = builder.phi(INT64)
    sums = [[builder.phi(FLOATS) for _ in range(2)] for _ in range(rows)]
    here = builder.add(w, builder.mul(step, w_stride))
    if held == "bfloat16":
        words = load(builder, WORDS, here)
        low, high = builder.shl(words, WORDS([16] * LANES)), builder.and_(words, WORDS([0xFFFF0000] * LANES))
        weights = [builder.bitcast(low, FLOATS), builder.bitcast(high, FLOATS)]
    else:
        weights = [load(builder, FLOATS, here, 32 * half) for half in range(2)]
    if ahead:
        prefetch(builder, builder.add(here, INT64(ahead)))
    new = []
    for row in range(rows):
        number = splat(builder, load(builder, FLOAT, builder.add(x_rows[row], builder.mul(step, INT64(4)))))
        new.append([multiply_add(builder, weights[half], number, sums[row][half]) for half in range(2)])
    following = builder.add(step, INT64(1))
    builder.cbranch(builder.icmp_signed("<", following, k), loop, done)
    step.add_incoming(INT64(0), before)
    step.add_incoming(following, loop)
    for row in range(rows):
        for half in range(2):
            sums[row][half].add_incoming(start[row][half], before)
            sums[row][half].add_incoming(new[row][half], loop)

    builder.position_at_end(done)
    for row in range(rows):
        for half in range(2):
            store(builder, new[row][half], out_rows[row], 32 * half)


def load(builder: Any, kind: ir.Type, address: Any, offset: int = 0, align: int = 4) -> Any:
    pointer = builder.inttoptr(builder.add(address, INT64(offset)), kind.as_pointer())
    return builder.load(pointer, align=align)


def store(builder: Any, value: Any, address: Any, offset: int = 0) -> None:
    pointer = builder.inttoptr(builder.add(address, INT64(offset)), value.type.as_pointer())
    builder.store(value, pointer, align=4)


def splat(builder: Any, number: Any) -> Any:
    """One float in all lanes."""
    vector = builder.insert_element(FLOATS(ir.Undefined), number, INT32(0))
    return builder.shuffle_vector(vector, vector, WORDS([0] * LANES))


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v8f32"), [a, b, c])


def prefetch(builder: Any, address: Any) -> None:
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [builder.inttoptr(address, pointer), INT32(0), INT32(3), INT32(1)])


@intrinsic
def take_next(typing_context: Any, numbers: Any, index: Any) -> Any:
    """Return ``numbers[index]`` of an int64 pointer and add 1 to it, as one act among all threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", counter, INT64(1), "monotonic")

    return types.int64(types.CPointer(types.int64), types.int64), generate


@intrinsic
def call(typing_context: Any, address: Any) -> Any:
    """Call the C function ``void f(void)`` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(builder.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def fetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, which is read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def transpose_8x8(typing_context: Any, rows: Any, shift: Any, out: Any, out_stride: Any) -> Any:
    """Write 8 floats of each of 8 rows as columns: ``out[c, r] = row r [shift + c]``.

    rows: the address of 8 addresses. shift, out_stride: bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, shift, out, out_stride = arguments
        lines = [load(builder, FLOATS, builder.add(load(builder, INT64, rows, 8 * r), shift)) for r in range(LANES)]
        for distance, masks in UNPACK:
            for r in range(LANES):
                if not r & distance:
                    pair = lines[r], lines[r + distance]
                    lines[r], lines[r + distance] = (builder.shuffle_vector(*pair, WORDS(mask)) for mask in masks)
        for line, column in zip(lines, UNPACKED, strict=True):
            store(builder, line, builder.add(out, builder.mul(out_stride, INT64(column))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def make_fold(vectors: int, sum_up: bool) -> Any:
    """A compiled function of the address of ``8 * vectors`` floats: their sum, or the largest that is no NaN."""

    @intrinsic
    def fold(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def both(a: Any, b: Any) -> Any:
                return builder.fadd(a, b) if sum_up else builder.select(builder.fcmp_ordered(">", a, b), a, b)

            parts = [load(builder, FLOATS, arguments[0], 32 * i) for i in range(vectors)]
            while len(parts) > 1:
                parts = [both(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
            for distance in (4, 2, 1):
                turned = WORDS([(lane + distance) % LANES for lane in range(LANES)])
                parts = [both(parts[0], builder.shuffle_vector(parts[0], parts[0], turned))]
            return builder.extract_element(parts[0], INT32(0))

        return types.float32(types.int64), generate

    return fold


@intrinsic
def address_of(typing_context: Any, pointer: Any) -> Any:
    """A pointer's address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], INT64)

    return types.int64(pointer), generate


@intrinsic
def exp2(typing_context: Any, x: Any) -> Any:
    """2 ** x in float32, within 2 units of the last place; 0 below -126, infinity above 127.5, NaN for NaN.

    2 ** x = 2 ** n * 2 ** f with n the nearest integer: a polynomial for f in [-0.5, 0.5] (Cephes), and n goes into
    the exponent's bits. Written without branches, so that a loop over it becomes vector instructions.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOAT, [FLOAT] * 3), "llvm.fma.f32")
        capped = builder.select(builder.fcmp_ordered(">", x, FLOAT(128.0)), FLOAT(128.0), x)
        # Added to 1.5 * 2 ** 23, a number is rounded to an integer, which then stands in the low bits.
        shifted = builder.fadd(capped, FLOAT(12582912.0))
        f = builder.fsub(capped, builder.fsub(shifted, FLOAT(12582912.0)))
        power = FLOAT(EXP2[0])
        for coefficient in EXP2[1:]:
            power = builder.call(fma, [power, f, FLOAT(coefficient)])
        n = builder.bitcast(shifted, INT32)
        scale = builder.bitcast(builder.shl(builder.add(n, INT32(127)), INT32(23)), FLOAT)
        return builder.select(builder.fcmp_ordered("<", x, FLOAT(-126.0)), FLOAT(0.0), builder.fmul(power, scale))

    return types.float32(types.float32), generate


def make_stack(floats: int) -> Any:
    """A compiled function that returns the address of room for so many floats on the thread's stack."""

    @intrinsic
    def stack(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            room = cgutils.alloca_once(builder, FLOAT, size=floats)
            room.align = 64
            return builder.ptrtoint(room, INT64)

        return types.int64(), generate

    return stack


def make_pointer(kind: types.Type) -> Any:
    """A compiled function that takes an int64 address for a pointer to numbers of `kind`."""

    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer


as_floats = make_pointer(types.float32)
as_integers = make_pointer(types.int64)
as_halves = make_pointer(types.uint16)
as_words = make_pointer(types.uint32)
as_bytes = make_pointer(types.uint8)
