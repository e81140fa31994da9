"""Whole layers in one go: the threads enter once, and wait for each other between one operator and the next.

With one token an operator takes 1 to 100 microseconds, and starting it from Python another 5 to 10. So all operators
of all layers are one kernel here. Each is the function that also runs alone, so the numbers are the same, bit for bit;
what a layer computes is told in `servelab.model.network`.
"""

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numba import njit
from numba.np.numpy_support import carray
from torch import Tensor

from servelab.ops.compiled import team
from servelab.ops.compiled.attention import as_layer, as_plan, attend_items, merge_items, write_token
from servelab.ops.compiled.draft import HEAD_LOOPS, HeadPass, enter_head, leave_head
from servelab.ops.compiled.kernel import FAST_MATH, Kernel
from servelab.ops.compiled.linear import PARALLEL_PRODUCTS, multiply_panels
from servelab.ops.compiled.plan import PagedRead
from servelab.ops.compiled.pointwise import float_bits, gate, normalise, rotate
from servelab.ops.compiled.vector import address_of, as_integers, call, make_pointer, take_next
from servelab.ops.layer import HeadResult, HeadWeights, Layers, LayerWeights

# Tokens that the feed-forward part takes at a time: its activations, the widest of all, need room for no more.
FED = 192
# Loops of a layer that threads share, each with a counter of its own: those over all tokens, and those over `FED`.
LOOPS, FED_LOOPS = 7, 3
# Numbers of SwiGLU's activation that a thread takes at a time.
GATED = 512


class Pass(ctypes.Structure):
    """A pass of T tokens through some layers: sizes, and addresses. head: of a `HeadPass`, or 0."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("counters", "layers", "weights", "attention", "plan", "head", "threads"),
            *("tokens", "hidden", "heads", "kv_heads", "head_dim", "inner", "eps"),
            *("x", "cos", "sin", "normed", "projected", "attended", "gated"),
        )
    ]


as_pass = make_pointer(numba.from_dtype(np.dtype(Pass)))
as_weights = make_pointer(numba.from_dtype(np.dtype(LayerWeights)))


def run_pass(arguments: Any) -> None:
    """arguments: a `Pass`."""
    step = carray(as_pass(address_of(arguments)), 1)[0]
    plan = carray(as_plan(step.plan), 1)[0]
    weights = carray(as_weights(step.weights), step.layers)
    attention = carray(as_layer(step.attention), step.layers)
    loops = loops_of_layer(step.tokens)
    counters, ends = as_integers(step.counters), loops * step.layers
    thread = take_next(counters, ends + HEAD_LOOPS)
    if step.head != 0:
        enter_head(counters, ends, step, plan.barrier)
    for index in range(step.layers):
        scratch = plan.scratch + thread * plan.scratch_bytes
        run_layer(step, loops * index, weights[index], attention[index], plan, scratch)
    if step.head != 0:
        leave_head(counters, ends, step, plan.barrier)


@njit
def loops_of_layer(tokens: Any) -> Any:
    return LOOPS + FED_LOOPS * ((tokens + FED - 1) // FED)


@njit(fastmath=FAST_MATH)
def run_layer(step: Any, place: Any, weights: Any, attention: Any, plan: Any, scratch: Any) -> None:
    """One layer, as every thread runs it. Each line needs all of the one before it, so threads wait in between.

    place: of the layer's first counter.
    """
    counters, tokens = as_integers(step.counters), step.tokens
    E, inner, q_size = step.hidden, step.inner, step.heads * step.head_dim
    qkv_size = q_size + 2 * step.kv_heads * step.head_dim

    normalise_tokens(counters, place, step, weights.attention_norm)
    call(plan.barrier)
    project(counters, place + 1, step, weights.qkv, E, qkv_size, step.normed, tokens, 0, step.projected)
    call(plan.barrier)
    turn_and_write(counters, place + 2, step, weights, attention, plan)
    call(plan.barrier)
    attend_items(counters, place + 3, attention, plan, scratch)
    call(plan.barrier)
    if plan.has_parts != 0:
        merge_items(counters, place + 4, attention, plan, scratch)
        call(plan.barrier)
    project(counters, place + 5, step, weights.output, q_size, E, step.attended, tokens, step.x, step.x)
    call(plan.barrier)
    normalise_tokens(counters, place + 6, step, weights.feed_forward_norm)
    call(plan.barrier)
    place += LOOPS
    for first in range(0, tokens, FED):
        count = min(FED, tokens - first)
        row = 4 * first * E
        project(counters, place, step, weights.gate_and_up, E, 2 * inner, step.normed + row, count, 0, step.projected)
        call(plan.barrier)
        gate_tokens(counters, place + 1, step, count)
        call(plan.barrier)
        x = step.x + row
        project(counters, place + 2, step, weights.down, inner, E, step.gated, count, x, x)
        call(plan.barrier)
        place += FED_LOOPS


@njit(fastmath=FAST_MATH)
def project(
    counters: Any,
    place: Any,
    step: Any,
    linear: Any,
    k: Any,
    n: Any,
    x: Any,
    tokens: Any,
    residual: Any,
    out: Any,
) -> None:
    """``out = x W^T + bias + residual`` for `tokens` rows of x."""
    multiply_panels(
        *(counters, place, linear.panels, linear.width, n, k, linear.bias),
        *(x, tokens, residual, out, step.threads),
    )


@njit(fastmath=FAST_MATH)
def normalise_tokens(counters: Any, place: Any, step: Any, weight: Any) -> None:
    while True:
        token = take_next(counters, place)
        if token >= step.tokens:
            break
        row = 4 * token * step.hidden
        normalise(step.x + row, weight, step.eps, step.hidden, step.normed + row)


@njit(fastmath=FAST_MATH)
def turn_and_write(counters: Any, place: Any, step: Any, weights: Any, attention: Any, plan: Any) -> None:
    """Of each token: normalise its heads where the model does, turn queries and keys, write keys and values."""
    heads, kv_heads, D = step.heads, step.kv_heads, step.head_dim
    while True:
        token = take_next(counters, place)
        if token >= step.tokens:
            break
        row = step.projected + 4 * token * (heads + 2 * kv_heads) * D
        if weights.q_norm != 0:
            for head in range(heads + kv_heads):
                weight = weights.q_norm if head < heads else weights.k_norm
                normalise(row + 4 * head * D, weight, step.eps, D, row + 4 * head * D)
        rotate(row, step.cos + 4 * token * D, step.sin + 4 * token * D, heads + kv_heads, D, row)
        write_token(attention, plan, token)


@njit(fastmath=FAST_MATH)
def gate_tokens(counters: Any, place: Any, step: Any, tokens: Any) -> None:
    inner = step.inner
    pieces = (inner + GATED - 1) // GATED
    while True:
        item = take_next(counters, place)
        if item >= tokens * pieces:
            break
        token, start = item // pieces, item % pieces * GATED
        gates = step.projected + 4 * (2 * token * inner + start)
        gate(gates, gates + 4 * inner, min(GATED, inner - start), step.gated + 4 * (token * inner + start))


PASS = Kernel(run_pass)


def run_layers(x: Tensor, layers: Layers, cos: Tensor, sin: Tensor, read: PagedRead) -> Tensor:
    """See `servelab.ops.run_layers`."""
    x = x.clone(memory_format=torch.contiguous_format)
    run(x, layers, cos.data_ptr(), sin.data_ptr(), read, None)
    return x


def run_head(
    hidden: Tensor,
    token_ids: Sequence[int],
    positions: Sequence[int],
    last: Sequence[int],
    weights: HeadWeights,
    layers: Layers,
    vocabulary_size: int,
    cos: Tensor,
    sin: Tensor,
    read: PagedRead,
) -> HeadResult:
    """See `servelab.ops.run_head`."""
    T, E = hidden.shape
    D, B = read.head_dim, len(last)
    x = torch.empty(T, E)
    logits = torch.empty(B, vocabulary_size)
    room = torch.empty(2 * T * E + B * E + 2 * T * D + B)
    joined = room.data_ptr()
    picked = joined + 8 * T * E
    turns = picked + 4 * B * E
    peaks = room[-B:]
    numbers = array("q", (*token_ids, *positions, *last, *last))
    tokens, _ = numbers.buffer_info()
    best = tokens + 8 * (2 * T + B)
    head = HeadPass(
        *(weights, tokens, tokens + 8 * T, hidden.data_ptr(), cos.data_ptr(), sin.data_ptr()),
        *(joined, tokens + 16 * T, B, picked, vocabulary_size, logits.data_ptr(), best, peaks.data_ptr()),
    )
    run(x, layers, turns, turns + 4 * T * D, read, head)
    return HeadResult(x if B == T else x[list(last)], logits, numbers[2 * T + B :].tolist(), peaks.tolist())


def run(x: Tensor, layers: Layers, cos: int, sin: int, read: PagedRead, head: HeadPass | None) -> None:
    """Run layers in place on x [T, E]. cos, sin: addresses of [T, D]. head: what stands around them, if anything."""
    T, E = x.shape
    H, G, D, inner = layers.num_heads, read.num_kv_heads, read.head_dim, layers.inner_size
    size = (H + 2 * G) * D
    threads = team.threads_for(T * E * (E + 3 * inner), PARALLEL_PRODUCTS)
    read.prepare(H, threads)
    fed = min(T, FED)
    widest = max(T * size, fed * 2 * inner)
    room = torch.empty(T * E + widest + max(T * H * D, fed * inner))
    normed = room.data_ptr()
    projected = normed + 4 * T * E
    attended = gated = projected + 4 * widest  # what was attended has been projected when the first row is gated
    k, v = projected + 4 * H * D, projected + 4 * (H + G) * D
    attention = read.layers(layers.indices, projected, k, v, (4 * size, 4 * size, 4 * size), attended)
    counters = (ctypes.c_int64 * (loops_of_layer.py_func(T) * len(layers.indices) + HEAD_LOOPS + 1))()
    step = Pass(
        *(ctypes.addressof(counters), len(layers.indices), ctypes.addressof(layers.weights)),
        *(ctypes.addressof(attention), ctypes.addressof(read.plan)),
        *(0 if head is None else ctypes.addressof(head), threads),
        *(T, E, H, G, D, inner, float_bits(layers.eps), x.data_ptr(), cos, sin, normed, projected, attended, gated),
    )
    team.run(PASS, step, threads)
