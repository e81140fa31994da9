"""The page table's questions: answers come from the trace, and every wrong block has a reason."""

import pytest

from servelab.engine import allocation_trace
from servelab.widgets.placement import block_decision, block_steps


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


def test_it_asks_where_blocks_are_taken_over_and_copied(shared_trace):
    assert block_steps(shared_trace, 0) == [0, 1]
    assert block_steps(shared_trace, 1) == [1, 3]
    assert block_steps(shared_trace, 2) == [1, 3]


def test_a_new_request_takes_over_the_full_block_that_begins_alike(shared_trace):
    decision = block_decision(shared_trace, 2, 1)
    assert decision.prompt == (
        "C arrives with 7 prompt tokens, and the first 5 are A's too. Which block can it take over? Point at it."
    )
    assert decision.answer == "block:0"
    right, text = decision.verdict("block:0")
    assert right
    assert text == ("Right. Block 0: A computed these 4 tokens already. The tokens behind them do not fill a block.")


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("block:1", "Block 1 is not full: only full blocks can be found."),
        ("block:5", "Block 5 is free and holds nothing that can be found."),
    ],
)
def test_each_wrong_block_to_take_over_has_its_reason(shared_trace, choice, reason):
    right, text = block_decision(shared_trace, 2, 1).verdict(choice)
    assert not right
    assert text.startswith(f"Not here. {reason} Block 0: A computed")


def test_the_first_write_to_a_shared_block_goes_to_a_copy(shared_trace):
    decision = block_decision(shared_trace, 0, 1)
    assert decision.prompt.startswith("A's token 8 is next. Which physical block takes it?")
    assert decision.answer == "block:2"
    assert "Nobody writes into a block that others read." in decision.rule
    assert "behind the 3 tokens in block 1, but the block is A-1's too" in decision.because
    assert "slot 3 of block 2, which has been free for longest" in decision.because
    assert "a write there would change what others read" in decision.verdict("block:1")[1]
    assert "not the one that has been free for longest" in decision.verdict("block:4")[1]


def test_the_second_owner_writes_in_place_once_the_first_has_its_copy(shared_trace):
    decision = block_decision(shared_trace, 1, 1)
    assert decision.answer == "block:1"
    assert "A shared it until this step, and took a copy: now A-1 writes where it is." in decision.because


def test_a_kept_block_that_is_handed_out_is_forgotten(shared_trace):
    decision = block_decision(shared_trace, 3, 4)
    assert decision.answer == "block:2"
    assert decision.because.endswith("What block 2 had kept is forgotten.")
