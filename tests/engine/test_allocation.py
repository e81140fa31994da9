"""`allocation_trace`: the operations, their events, and operations that make no sense."""

import pytest

from servelab.cache import OutOfBlocks
from servelab.engine import allocation_trace


def kinds(trace, step):
    return [event.kind for event in trace.steps[step].events]


def test_the_running_example():
    """Blocks of 4: A has 7 tokens, B has 2. A's 8th token fits; its 9th takes block 3."""
    operations = [("place", "A", 7), ("place", "B", 2), ("append", "A", 1), ("append", "A", 1), ("free", "A")]
    trace = allocation_trace(operations, num_slots=24, block_size=4)
    assert kinds(trace, 0) == ["arrive", "admit", "allocate", "allocate", "schedule"]
    assert kinds(trace, 2) == ["schedule", "emit"]
    assert kinds(trace, 3) == ["allocate", "schedule", "emit"]
    assert kinds(trace, 4) == ["finish", "free", "free", "free"]
    assert [trace.state_at(step).requests[0].block_table for step in range(5)] == [
        [0, 1],
        [0, 1],
        [0, 1],
        [0, 1, 3],
        [0, 1, 3],
    ]
    assert trace.state_at(4, "end").requests[0].block_table == []
    assert trace.requests[0].token_texts[-2:] == ["A8", "A9"]


def test_a_contiguous_request_may_reserve_more_than_it_stores():
    trace = allocation_trace([("place", "A", 3, 10), ("append", "A", 7)], kv_cache="contiguous", num_slots=12)
    assert trace.state_at(0).requests[0].reservation == (0, 10)
    assert trace.state_at(1).requests[0].num_computed_tokens == 10


def test_a_refused_request_can_be_placed_again():
    operations = [("place", "A", 8), ("place", "B", 8), ("free", "A"), ("place", "B", 8)]
    trace = allocation_trace(operations, num_slots=12, block_size=4)
    assert kinds(trace, 1) == ["arrive", "wait"]
    assert kinds(trace, 3)[0] == "admit"
    assert [request.request_id for request in trace.requests] == ["A", "B"]


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([("move", "A", 1)], r'expected \("place", name, tokens'),
        ([("place", "A")], r'expected \("place", name, tokens'),
        ([("place", "A", 2), ("place", "A", 2)], "expected a request that holds no memory, got 'A'"),
        ([("append", "A", 1)], r"expected a placed request \(none\), got 'A'"),
        ([("place", "A", 1), ("free", "B")], r"expected a placed request \(A\), got 'B'"),
        ([("place", "A", 0)], "expected 1 <= tokens <= total, got 0 tokens"),
        ([("place", "A", 5, 4)], "expected 1 <= tokens <= total, got 5 tokens and a total of 4"),
        ([("place", "A", 1), ("append", "A", 0)], "expected at least 1 token to append, got 0"),
    ],
)
def test_operations_that_make_no_sense_are_refused(operations, message):
    with pytest.raises(ValueError, match=message):
        allocation_trace(operations, num_slots=12, block_size=4)


def test_an_append_needs_a_free_block():
    with pytest.raises(OutOfBlocks):
        allocation_trace([("place", "A", 8), ("place", "B", 4), ("append", "A", 1)], num_slots=12, block_size=4)


def test_pools_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="expected num_slots in whole blocks of 4, got 10"):
        allocation_trace([], num_slots=10, block_size=4)
    with pytest.raises(ValueError, match='expected kv_cache "paged" or "contiguous", got \'both\''):
        allocation_trace([], kv_cache="both", num_slots=8)


@pytest.mark.parametrize(
    "operations",
    [None, 5, "place", {}, [None], [()], [("place",)], [("place", 1, 2)], [("place", "A", 1.0)], [("place", "A", 0)]],
)
def test_what_is_no_operation_is_refused(operations):
    with pytest.raises(ValueError, match="expected"):
        allocation_trace(operations, num_slots=8, block_size=4)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "4", None])
def test_what_is_no_pool_is_refused(size):
    with pytest.raises(ValueError, match="expected num_slots to be an integer >= 1, got"):
        allocation_trace([("place", "A", 1)], num_slots=size)
    with pytest.raises(ValueError, match="expected block_size to be an integer >= 1, got"):
        allocation_trace([("place", "A", 1)], num_slots=8, block_size=size)
