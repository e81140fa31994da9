"""What a draft head does before and after its layers, on the threads that run those (`servelab.ops.run_head`).

before   joined = [norm(hidden), norm(embedding of the token)]      x = fuse(joined)
after    logits = rows(norm(x)) of each sequence's last token; the highest of them, and its probability
"""

import ctypes
from typing import Any

import numba
import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from servelab.ops.compiled.kernel import FAST_MATH
from servelab.ops.compiled.linear import PANEL, multiply_panels
from servelab.ops.compiled.pointwise import LOG2_E, normalise
from servelab.ops.compiled.vector import (
    as_floats,
    as_halves,
    as_integers,
    as_words,
    call,
    exp2,
    make_pointer,
    take_next,
)
from servelab.ops.layer import HeadWeights

# Loops that threads share, each with a counter of its own.
JOIN, FUSE, NORMALISE, PROJECT, CHOOSE = range(5)
HEAD_LOOPS = 5


class HeadPass(ctypes.Structure):
    """T tokens of B sequences: weights, sizes, and addresses.

    tokens, positions: [T] int64. cos_table, sin_table: [longest, D]. hidden: [T, E], the state before each token.
    joined: [T, 2E], picked: [B, E], both room. last: [B] the row of each sequence's last token. logits:
    [B, vocabulary]. best: [B] int64. peaks: [B].
    """

    _fields_ = [
        ("weights", HeadWeights),
        *(
            (name, ctypes.c_int64)
            for name in (
                *("tokens", "positions", "hidden", "cos_table", "sin_table", "joined", "last", "sequences"),
                *("picked", "vocabulary", "logits", "best", "peaks"),
            )
        ),
    ]


as_head = make_pointer(numba.from_dtype(np.dtype(HeadPass)))


@njit(fastmath=FAST_MATH)
def enter_head(counters: Any, place: Any, step: Any, barrier: Any) -> None:
    """Make step.x, and the rotations of its tokens. place: of the first counter."""
    head = carray(as_head(step.head), 1)[0]
    E, D = step.hidden, step.head_dim
    positions = carray(as_integers(head.positions), step.tokens)
    tokens = carray(as_integers(head.tokens), step.tokens)
    while True:
        token = take_next(counters, place + JOIN)
        if token >= step.tokens:
            break
        joined = head.joined + 8 * token * E
        normalise(head.hidden + 4 * token * E, head.weights.hidden_norm, step.eps, E, joined)
        read_row(head.weights.embedding, tokens[token], E, joined + 4 * E)
        normalise(joined + 4 * E, head.weights.embedding_norm, step.eps, E, joined + 4 * E)
        copy(head.cos_table + 4 * positions[token] * D, D, step.cos + 4 * token * D)
        copy(head.sin_table + 4 * positions[token] * D, D, step.sin + 4 * token * D)
    call(barrier)
    fuse = head.weights.fuse
    multiply_panels(
        *(counters, place + FUSE, fuse.panels, fuse.width, E, 2 * E, fuse.bias),
        *(head.joined, step.tokens, 0, step.x, step.threads),
    )
    call(barrier)


@njit(fastmath=FAST_MATH)
def leave_head(counters: Any, place: Any, step: Any, barrier: Any) -> None:
    """Logits of each sequence's last token, and which is the highest. place: as for `enter_head`."""
    head = carray(as_head(step.head), 1)[0]
    E, sequences, vocabulary = step.hidden, head.sequences, head.vocabulary
    last = carray(as_integers(head.last), sequences)
    while True:
        row = take_next(counters, place + NORMALISE)
        if row >= sequences:
            break
        normalise(step.x + 4 * last[row] * E, head.weights.norm, step.eps, E, head.picked + 4 * row * E)
    call(barrier)
    rows = head.weights.rows
    multiply_panels(
        *(counters, place + PROJECT, rows.panels, rows.width, vocabulary, E, rows.bias),
        *(head.picked, sequences, 0, head.logits, step.threads),
    )
    call(barrier)
    best, peaks = carray(as_integers(head.best), sequences), carray(as_floats(head.peaks), sequences)
    while True:
        row = take_next(counters, place + CHOOSE)
        if row >= sequences:
            break
        logits = carray(as_floats(head.logits + 4 * row * vocabulary), vocabulary)
        best[row] = highest_of(logits)
        # NaN where the highest is infinite, or there is no highest.
        peaks[row] = np.float32(1.0) / sum_of_powers(logits, logits[best[row]])


@njit(fastmath=FAST_MATH)
def read_row(linear: Any, row: Any, k: Any, out: Any) -> None:
    """Copy one row of the matrix that lies in panels (`servelab.ops.panel`), as k floats."""
    place = row % PANEL
    if linear.width == 2:  # a bfloat16 is the upper half of a float32
        column = place % (PANEL // 2) * 2 + place // (PANEL // 2)
        halves = carray(as_halves(linear.panels + row // PANEL * k * PANEL * 2), k * PANEL)
        words = carray(as_words(out), k)
        for i in range(k):
            words[i] = np.uint32(halves[i * PANEL + column]) << np.uint32(16)
    else:
        numbers = carray(as_floats(linear.panels + row // PANEL * k * PANEL * 4), k * PANEL)
        target = carray(as_floats(out), k)
        for i in range(k):
            target[i] = numbers[i * PANEL + place]


@njit(fastmath=FAST_MATH)
def copy(source: Any, n: Any, out: Any) -> None:
    numbers, target = carray(as_floats(source), n), carray(as_floats(out), n)
    for i in range(n):
        target[i] = numbers[i]


@njit(fastmath=FAST_MATH)
def highest_of(numbers: Any) -> Any:
    """The place of the first highest number, or of the first that is NaN."""
    best = 0
    for i in range(len(numbers)):
        if numbers[i] != numbers[i]:
            return i
        if numbers[i] > numbers[best]:
            best = i
    return best


@njit(fastmath=FAST_MATH)
def sum_of_powers(numbers: Any, highest: Any) -> Any:
    """The sum of ``exp(x - highest)``."""
    total = np.float32(0.0)
    for i in range(len(numbers)):
        total += exp2((numbers[i] - highest) * LOG2_E)
    return total
