"""Questions and answers come from the trace, and every wrong answer has a reason."""

import pytest

from servelab.engine import allocation_trace
from servelab.widgets.decision import admission, admission_decision, admission_steps, block_decision, block_steps


def test_it_asks_where_something_is_decided(hand_trace):
    assert block_steps(hand_trace, 0) == [0, 2, 3, 6]
    assert block_steps(hand_trace, 1) == [0 + 1, 4]


def test_it_asks_around_every_block_boundary():
    operations = [("place", "A", 1)] + [("append", "A", 1)] * 11
    trace = allocation_trace(operations, kv_cache="paged", num_slots=16, block_size=4)
    # Tokens 1 (first), 2 would be inside; 4 fills a block, 5 opens one, 8 fills, 9 opens, 12 fills.
    assert block_steps(trace, 0) == [0, 3, 4, 7, 8, 11]


def test_the_eighth_token_stays_and_the_ninth_needs_a_block(hand_trace):
    eighth = block_decision(hand_trace, 0, 2)
    assert eighth.answer == "block:1"
    right, text = eighth.verdict("block:1")
    assert right
    assert text.startswith("Right. Token 8 goes to slot 3 of block 1: 7 tokens before it = 1 x 4 + 3")
    ninth = block_decision(hand_trace, 0, 3)
    assert ninth.answer == "block:3"
    assert "8 tokens before it = 2 x 4 + 0" in ninth.because
    assert "free for longest" in ninth.rule


@pytest.mark.parametrize(
    ("step", "choice", "reason"),
    [
        (2, "block:0", "Block 0 is A's already, and full"),
        (2, "block:2", "Block 2 holds tokens of B"),
        (2, "block:4", "Block 4 is free, but A's last block still has room"),
        (3, "block:1", "Block 1 is A's already, and full"),
        (3, "block:5", "block 5 is not the one that has been free for longest"),
    ],
)
def test_each_wrong_block_has_its_reason(hand_trace, step, choice, reason):
    right, text = block_decision(hand_trace, 0, step).verdict(choice)
    assert not right
    assert reason in text
    assert "goes to slot" in text


def test_the_answer_is_always_the_traces_own(large_trace):
    for request in (0, 7, 30):
        for step in block_steps(large_trace, request):
            after = large_trace.state_at(step, "computed").requests[request]
            block = after.block_table[(after.num_computed_tokens - 1) // large_trace.block_size]
            assert block_decision(large_trace, request, step).answer == f"block:{block}"


def test_a_step_without_a_token_has_no_question(hand_trace):
    with pytest.raises(ValueError, match="expected a step in which request 0 stores a token, got step 1"):
        block_decision(hand_trace, 0, 1)


def test_one_request_two_pools(holes_contiguous, holes_paged):
    decision = admission_decision([holes_contiguous, holes_paged], ["rows", "blocks"], 6)
    assert decision.answer == "second"
    assert [identity for identity, _label in decision.choices] == ["both", "first", "second", "none"]
    assert "9 slots in a row (rows) or 3 blocks (blocks)" in decision.prompt
    right, text = decision.verdict("both")
    assert not right
    assert "free: 19, but the longest run has only 7" in text
    assert "Blocks needed: 3; free: 4" in text


def test_what_was_free_is_counted_before_the_admission(holes_contiguous, holes_paged):
    fourth = admission(holes_contiguous, 3)
    assert (fourth.admitted, fourth.needed, fourth.free, fourth.largest) == (True, 7, 12, 12)
    fourth = admission(holes_paged, 3)
    assert (fourth.admitted, fourth.needed, fourth.free) == (True, 2, 2)
    assert admission(holes_paged, 4) is None
    assert admission(holes_paged, 99) is None


def test_a_single_pool_asks_admit_or_wait(holes_contiguous):
    decision = admission_decision([holes_contiguous], ["pool"], 6)
    assert decision.answer == "wait"
    assert decision.verdict("wait")[0]
    assert admission_decision([holes_contiguous], ["pool"], 4) is None


def test_each_refusal_is_asked_once():
    operations = [
        ("place", "A", 12),
        ("place", "B", 8),
        ("append", "A", 1),
        ("place", "B", 8),
        ("free", "A"),
        ("place", "B", 8),
    ]
    trace = allocation_trace(operations, kv_cache="paged", num_slots=16, block_size=4)
    assert admission_steps([trace]) == [1]
    assert admission(trace, 1).because() == "Blocks needed: 2; free: only 1."
