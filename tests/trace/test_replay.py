"""Replay: the state at each moment of a step, over checkpoints, and of a trace that still grows."""

import pytest

from servelab.engine import allocation_trace
from servelab.trace import (
    Admit,
    Allocate,
    Arrive,
    Cache,
    Copy,
    Draft,
    Emit,
    Evict,
    Finish,
    Fork,
    Free,
    Hit,
    Preempt,
    RequestRecord,
    Schedule,
    StepRecord,
    Trace,
    Trim,
    Verify,
    Wait,
)


@pytest.fixture
def trace():
    """A runs, B is preempted for A's third block, A ends. Blocks of 2."""
    first = [Arrive(0), Arrive(1), Admit(0), Allocate(0, 0, 0), Allocate(0, 1, 1), Admit(1), Allocate(1, 0, 2)]
    return Trace(
        "paged",
        num_blocks=3,
        block_size=2,
        requests=[RequestRecord("A", [1, 2, 3, 4], 2, [5, 6]), RequestRecord("B", [7], 4, [8])],
        steps=[
            StepRecord([*first, Schedule(((0, 4), (1, 1))), Emit(((0, 1), (1, 1)))]),
            StepRecord(
                [
                    *[Preempt(1), Free(1, 2), Allocate(0, 2, 2), Wait(1, "no_memory", 1, 0, 0)],
                    *[Schedule(((0, 1),)), Emit(((0, 1),)), Finish(0, "length"), Free(0, 2), Free(0, 1), Free(0, 0)],
                ]
            ),
        ],
    )


def test_scheduled_is_before_the_rows_are_written(trace):
    state = trace.state_at(0, "scheduled")
    assert [request.num_scheduled_tokens for request in state.requests] == [4, 1]
    assert [request.num_computed_tokens for request in state.requests] == [0, 0]
    assert state.requests[0].block_table == [0, 1]


def test_computed_is_after_the_rows_and_before_anybody_leaves(trace):
    state = trace.state_at(1, "computed")
    assert state.requests[0].num_computed_tokens == 5
    assert state.requests[0].num_tokens == 6
    assert state.requests[0].block_table == [0, 1, 2]
    assert (state.running, state.waiting) == ([0], [1])


def test_a_preempted_request_waits_without_blocks_and_keeps_its_tokens(trace):
    request = trace.state_at(1, "scheduled").requests[1]
    assert (request.status, request.block_table, request.num_computed_tokens) == ("waiting", [], 0)
    assert request.num_tokens == 2


def test_end_is_after_the_finished_left(trace):
    state = trace.state_at(1, "end")
    assert state.requests[0].status == "finished"
    assert state.block_owners() == {}
    assert (state.running, state.waiting) == ([], [1])


def test_block_owners_name_request_and_logical_index(trace):
    assert trace.state_at(0).block_owners() == {0: [(0, 0)], 1: [(0, 1)], 2: [(1, 0)]}


def test_states_are_those_of_state_at(trace):
    for moment in ("scheduled", "computed", "end"):
        tables = [[list(request.block_table) for request in state.requests] for state in trace.states(moment)]
        assert tables == [[request.block_table for request in trace.state_at(s, moment).requests] for s in range(2)]


@pytest.mark.parametrize(("step", "moment"), [(-1, "end"), (2, "end"), (0, "later")])
def test_no_such_step_or_moment(trace, step, moment):
    with pytest.raises(ValueError, match=r"expected a step in 0..1, got|expected a moment in"):
        trace.state_at(step, moment)


def test_a_state_belongs_to_its_caller(trace):
    trace.state_at(1).requests[0].block_table.append(99)
    assert trace.state_at(1).requests[0].block_table == [0, 1, 2]


def test_checkpoints_change_nothing():
    """150 steps span two checkpoints: the state from a checkpoint is the state from the start."""
    operations = [("place", "A", 1), *[("append", "A", 1)] * 149]
    trace = allocation_trace(operations, num_slots=160, block_size=4)
    late = trace.state_at(149)
    assert late.requests[0].num_computed_tokens == 150
    early = trace.state_at(70)
    assert (early.requests[0].num_computed_tokens, len(early.requests[0].block_table)) == (71, 18)
    assert trace.state_at(149) == late


def test_a_trace_that_still_grows_can_be_replayed(trace):
    before = trace.state_at(1, "end")
    trace.requests.append(RequestRecord("C", [1], 1))
    trace.steps.append(StepRecord([Arrive(2)]))
    after = trace.state_at(2)
    assert len(before.requests) == 2
    assert after.waiting == [1, 2]


def test_a_table_with_a_gap_is_refused(trace):
    trace.steps[0].events.insert(7, Allocate(1, 3, 1))
    with pytest.raises(ValueError, match="expected entry 1 of request 1's table, got entry 3"):
        trace.state_at(0)


@pytest.mark.parametrize("moment", ["scheduled", "computed", "end"])
def test_the_states_in_turn_are_the_states_asked_for_one_by_one(trace, moment):
    """B runs in step 0 alone: in step 1 it has nothing scheduled."""
    for step, state in enumerate(trace.states(moment)):
        assert state == trace.state_at(step, moment)


@pytest.mark.parametrize("step", [None, 0.0, "0", [], 2, -1])
def test_what_is_no_step_is_refused(trace, step):
    with pytest.raises(ValueError, match=r"expected a step in 0\.\.1, got"):
        trace.state_at(step)


def test_an_aborted_request_is_gone_before_the_rows_are_chosen():
    """Its end comes first in the step, the ends of others last: only those wait for the moment "end"."""
    trace = allocation_trace([("place", "A", 3), ("place", "B", 2), ("append", "B", 1)], num_slots=8, block_size=2)
    trace.steps[2].events[:0] = [Finish(0, "abort"), Free(0, 1), Free(0, 0)]
    for moment, computed in (("scheduled", 2), ("computed", 3), ("end", 3)):
        gone, other = trace.state_at(2, moment).requests
        assert (gone.status, gone.block_table) == ("finished", [])
        assert (other.status, other.num_computed_tokens) == ("running", computed)


def test_jumping_back_over_checkpoints_gives_what_walking_gives():
    """The last step first, so that every checkpoint is there when the steps around it are asked for."""
    operations = [("place", "A", 1), *[("append", "A", 1)] * 149]
    trace = allocation_trace(operations, num_slots=160, block_size=4)
    for step in reversed(range(150)):
        assert trace.state_at(step).requests[0].num_computed_tokens == step + 1


def shared_prefix() -> Trace:
    """Blocks of 2. A stores 5 tokens and leaves; B begins alike, takes two blocks over, and has three answers; C runs
    beside them; then B writes into its last block, and its third answer is aborted."""
    return Trace(
        "paged",
        num_blocks=5,
        block_size=2,
        requests=[
            RequestRecord("A", [1, 2, 3, 4, 5], 1, [6]),
            RequestRecord("B", [1, 2, 3, 4, 9], 2, [7, 7]),
            RequestRecord("B#1", [1, 2, 3, 4, 9], 2, [8, 8]),
            RequestRecord("B#2", [1, 2, 3, 4, 9], 2, [9]),
            RequestRecord("C", [3], 2, [4]),
        ],
        steps=[
            StepRecord(
                [
                    *[Arrive(0), Admit(0), Allocate(0, 0, 0), Allocate(0, 1, 1), Allocate(0, 2, 2)],
                    *[Schedule(((0, 5),)), Emit(((0, 1),)), Cache(0, 0, 0), Cache(0, 1, 1)],
                    *[Finish(0, "length"), Free(0, 2), Free(0, 1), Free(0, 0)],
                ]
            ),
            StepRecord(
                [
                    *[Arrive(1), Arrive(4), Admit(1), Hit(1, 0, 0), Hit(1, 1, 1), Allocate(1, 2, 3)],
                    *[Admit(4), Allocate(4, 0, 4), Schedule(((1, 1), (4, 1)))],
                    *[Fork(2, 1), Fork(3, 1), Emit(((1, 1), (2, 1), (3, 1), (4, 1)))],
                ]
            ),
            StepRecord([Copy(1, 2, 3, 2), Finish(3, "abort"), Free(3, 3), Free(3, 1), Free(3, 0)]),
        ],
    )


def test_blocks_of_the_prefix_cache_are_taken_over():
    trace = shared_prefix()
    state = trace.state_at(0, "end")
    assert (list(state.free), state.cached) == ([3, 4, 2, 1, 0], {0, 1})
    assert state.findable == {0: (0, 0), 1: (0, 1)}
    state = trace.state_at(1, "scheduled")
    request = state.requests[1]
    assert (request.block_table, request.num_cached_tokens, request.num_computed_tokens) == ([0, 1, 3], 4, 4)
    assert (request.num_scheduled_tokens, list(state.free), state.cached) == (1, [2], set())


def test_forked_requests_share_every_block_and_run_behind_their_parent():
    trace = shared_prefix()
    state = trace.state_at(1)
    assert state.running == [1, 2, 3, 4]
    assert [state.requests[index].block_table for index in (1, 2, 3)] == [[0, 1, 3]] * 3
    assert [state.requests[index].parent for index in (1, 2, 3, 4)] == [None, 1, 1, None]
    child = state.requests[3]
    assert (child.status, child.num_tokens, child.num_computed_tokens) == ("running", 6, 5)
    assert (child.num_scheduled_tokens, state.requests[1].num_scheduled_tokens) == (0, 1)
    assert state.reference_counts == {0: 3, 1: 3, 3: 3, 4: 1}
    assert state.block_owners()[3] == [(1, 2), (2, 2), (3, 2)]


def test_a_copy_on_write_leaves_the_source_to_the_others():
    trace = shared_prefix()
    state = trace.state_at(2, "end")
    assert [state.requests[index].block_table for index in (1, 2, 3)] == [[0, 1, 2], [0, 1, 3], []]
    assert state.reference_counts == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}
    assert list(state.free) == []
    assert trace.state_at(1, "end").requests[1].block_table == [0, 1, 3]


def test_an_evicted_block_is_found_no_more():
    trace = shared_prefix()
    trace.steps[1].events[3:6] = [Allocate(1, 0, 3), Allocate(1, 1, 4), Allocate(1, 2, 2)]
    trace.steps[1].events[7] = Allocate(4, 0, 1)
    with pytest.raises(ValueError, match="expected a free block that was evicted or never cached, got block 1"):
        trace.state_at(1)
    trace.steps[1].events.insert(7, Evict(1))
    assert trace.state_at(1).findable == {0: (0, 0)}
    assert trace.state_at(1).cached == {0}
    assert list(trace.state_at(1).free) == [0]


def test_rejected_draft_tokens_count_as_not_computed():
    """4 draft tokens, the first 2 accepted: of 5 scheduled tokens 3 stay, and 3 are emitted."""
    trace = allocation_trace([("place", "A", 3)], num_slots=12, block_size=4)
    trace.requests[0].output_token_ids += [5, 5, 5, 5]
    draft, values = (5, 5, 6, 6), (1.0, 1.0, 0.0, 0.0)
    trace.steps[0].events.append(Emit(((0, 1),)))
    trace.steps.append(
        StepRecord(
            [
                *[Allocate(0, 1, 1), Draft(0, draft, (1.0,) * 4), Schedule(((0, 5),))],
                *[Verify(0, draft, values, (0.0,) * 4, 2), Emit(((0, 3),))],
            ]
        )
    )
    before, after = (trace.state_at(1, moment).requests[0] for moment in ("scheduled", "computed"))
    assert (before.num_scheduled_tokens, before.num_computed_tokens, before.num_tokens) == (5, 3, 4)
    assert (after.num_scheduled_tokens, after.num_computed_tokens, after.num_tokens) == (3, 6, 7)


def test_what_rejected_draft_tokens_needed_is_given_back_and_handed_out_next():
    """5 slots for drafts, all rejected: of three blocks one stays, and the others stand at the head of the queue."""
    trace = allocation_trace([("place", "A", 3)], num_slots=16, block_size=4)
    drafting = StepRecord([Allocate(0, 1, 1), Allocate(0, 2, 2), Trim(0, 2), Trim(0, 1)])
    trace.steps += [drafting, StepRecord([Allocate(0, 1, 1)])]
    state = trace.state_at(1, "end")
    assert (state.requests[0].block_table, list(state.free)) == ([0], [1, 2, 3])
    assert trace.state_before(1, 3).requests[0].block_table == [0, 1]
    assert trace.state_at(2).requests[0].block_table == [0, 1]
    drafting.events[2] = Trim(0, 1)
    with pytest.raises(ValueError, match="expected the last block of request 0's table, got block 1"):
        trace.state_before(1, 3)


def test_what_was_known_before_each_event(trace):
    assert trace.state_before(1, 0) == trace.state_at(0, "end") != trace.state_before(1, 1)
    assert trace.state_before(1, 1).waiting == [1]
    assert list(trace.state_before(1, 2).free) == [2]
    assert trace.state_before(1, 3).requests[0].block_table == [0, 1, 2]
    with pytest.raises(ValueError, match=r"expected a step in 0\.\.1, got 2"):
        trace.state_before(2, 0)
    with pytest.raises(ValueError, match=r"expected an event in 0\.\.\d+ of step 1, got -1"):
        trace.state_before(1, -1)
