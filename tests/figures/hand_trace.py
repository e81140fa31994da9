"""Traces small enough to follow by hand, and one as large as a chapter's."""

import random

import pytest

from servelab.engine import allocation_trace

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
