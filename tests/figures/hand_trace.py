"""Traces small enough to follow by hand, and one as large as a chapter's."""

import random

import pytest

from servelab.engine import allocation_trace
from servelab.trace import (
    Admit,
    Allocate,
    Arrive,
    Cache,
    Copy,
    Emit,
    Evict,
    Finish,
    Fork,
    Free,
    Hit,
    RequestRecord,
    Schedule,
    StepRecord,
    Trace,
)

HAND = [
    ("place", "A", 7),
    ("place", "B", 2),
    ("append", "A", 1),
    ("append", "A", 1),
    ("append", "B", 1),
    ("free", "B"),
    ("append", "A", 4),
]
HOLES = [
    ("place", "A", 7),
    ("place", "B", 2),
    ("place", "C", 7),
    ("place", "D", 7),
    ("free", "A"),
    ("free", "C"),
    ("place", "E", 9),
]


@pytest.fixture(scope="session")
def hand_trace():
    """A has 7 prompt tokens, B has 2; blocks of 4; A's 8th and 9th token come while B runs."""
    return allocation_trace(HAND, kv_cache="paged", num_slots=28, block_size=4)


@pytest.fixture(scope="session")
def holes_contiguous():
    """28 slots: 7, 2, 7, 7 placed, the first and third 7 freed, then 9 refused."""
    return allocation_trace(HOLES, kv_cache="contiguous", num_slots=28)


@pytest.fixture(scope="session")
def holes_paged():
    """The same operations in 7 blocks of 4: the 9 fit."""
    return allocation_trace(HOLES, kv_cache="paged", num_slots=28, block_size=4)


@pytest.fixture(scope="session")
def large_trace():
    """60 requests in a pool of 1,456 blocks of 16."""
    order = random.Random(0)
    operations = [("place", f"R{number}", order.randint(20, 290)) for number in range(60)]
    operations += [("append", f"R{order.randrange(60)}", order.randint(1, 3)) for _ in range(120)]
    operations += [("free", f"R{number}") for number in range(0, 60, 4)]
    operations += [("append", "R7", 1) for _ in range(20)]
    return allocation_trace(operations, kv_cache="paged", num_slots=1456 * 16, block_size=16)


@pytest.fixture(scope="session")
def shared_trace():
    """Blocks of 4, a pool of 7. A has 7 prompt tokens and two answers, A and A-1; C begins with 5 of A's tokens.

    Step 0 computes A and forks it. In step 1 A's write goes to a copy, and C takes over A's first block. In step 2 A
    leaves, in step 3 the others. In step 4 D takes the blocks that were never kept, 5 and 6, and then one that was.
    """
    words = ["The", " sky", " is", " blue", " because", " of", " the"]
    trace = Trace("paged", num_blocks=7, block_size=4, max_num_seqs=4)
    trace.requests = [
        RequestRecord("A", [1, 2, 3, 4, 5, 6, 7], 2, [8, 9], [*words, " light", "."]),
        RequestRecord("A-1", [1, 2, 3, 4, 5, 6, 7], 3, [10, 11, 12], [*words, " air", ",", " and"]),
        RequestRecord("C", [1, 2, 3, 4, 5, 13, 14], 2, [15, 16], [*words[:5], " water", " is", " wet", "."]),
        RequestRecord("D", list(range(20, 31)), 1, [31], [f"D{number}" for number in range(1, 13)]),
    ]
    trace.steps = [
        StepRecord([
            Arrive(0), Admit(0), Allocate(0, 0, 0), Allocate(0, 1, 1), Schedule(((0, 7),)), Fork(1, 0),
            Emit(((0, 1), (1, 1))), Cache(0, 0, 0),
        ]),
        StepRecord([
            Arrive(2), Copy(0, 1, 1, 2), Admit(2), Hit(2, 0, 0), Allocate(2, 1, 3),
            Schedule(((0, 1), (1, 1), (2, 3))), Emit(((0, 1), (1, 1), (2, 1))), Cache(0, 1, 2), Cache(1, 1, 1),
        ]),
        StepRecord([
            Finish(0, "length"), Free(0, 2), Free(0, 0),
        ]),
        StepRecord([
            Allocate(1, 2, 4), Schedule(((1, 1), (2, 1))), Emit(((1, 1), (2, 1))), Cache(2, 1, 3),
            Finish(1, "length"), Free(1, 4), Free(1, 1), Free(1, 0), Finish(2, "length"), Free(2, 3), Free(2, 0),
        ]),
        StepRecord([
            Arrive(3), Admit(3), Allocate(3, 0, 5), Allocate(3, 1, 6), Evict(2), Allocate(3, 2, 2),
            Schedule(((3, 11),)), Emit(((3, 1),)),
        ]),
    ]  # fmt: skip
    return trace
