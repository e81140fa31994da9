"""The page table's questions: answers come from the trace, and every wrong block has a reason."""

import pytest

from servelab.engine import allocation_trace
from servelab.trace import (
    Admit,
    Allocate,
    Arrive,
    Cache,
    Evict,
    Finish,
    Free,
    Hit,
    Preempt,
    RequestRecord,
    Schedule,
    StepRecord,
    Trace,
)
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
    assert "others need that slot for a token of their own" in decision.verdict("block:1")[1]
    assert "not the one that has been free for longest" in decision.verdict("block:4")[1]


def test_the_second_owner_writes_in_place_once_the_first_has_its_copy(shared_trace):
    decision = block_decision(shared_trace, 1, 1)
    assert decision.answer == "block:1"
    assert "A shared it until this step, and took a copy: now A-1 writes where it is." in decision.because


def test_a_kept_block_that_is_handed_out_is_forgotten(shared_trace):
    decision = block_decision(shared_trace, 3, 4)
    assert decision.answer == "block:2"
    assert decision.because.endswith("What block 2 had kept is forgotten.")


def second_request(prompt, hits, evicted=()):
    """A's 12 tokens fill blocks 0 to 2 and stay there; then B comes with `prompt` and begins with the blocks `hits`."""
    trace = Trace("paged", num_blocks=8, block_size=4)
    trace.requests = [RequestRecord("A", list(range(12)), 1), RequestRecord("B", prompt, 1)]
    computed = [Admit(0), *(Allocate(0, block, block) for block in range(3)), Schedule(((0, 12),))]
    kept = [*(Cache(0, block, block) for block in range(3)), Finish(0, "length"), *(Free(0, b) for b in (2, 1, 0))]
    num_blocks = -(-len(prompt) // 4)
    taken = [*(Hit(1, index, block) for index, block in enumerate(hits))]
    new = [Allocate(1, index, 3 + index) for index in range(len(hits), num_blocks)]
    rows = ((1, len(prompt) - 4 * len(hits)),)
    trace.steps = [
        StepRecord([Arrive(0), *computed, *kept]),
        StepRecord([Arrive(1), *map(Evict, evicted), Admit(1), *taken, *new, Schedule(rows)]),
    ]
    return trace


@pytest.mark.parametrize(
    ("prompt", "hits", "evicted", "why"),
    [
        (list(range(12)), [0, 1], (), "The last token of a prompt is always computed"),
        ([*range(12), 90, 91], [0, 1, 2], (), "The tokens behind them do not fill a block."),
        ([*range(6), *range(80, 86)], [0], (), "would need tokens 5 to 8 to be the same, and only the first 6 are."),
        ([*range(12), 90, 91, 92, 93, 94], [0, 1], (2,), "The block behind them can no longer be found."),
    ],
)
def test_it_says_why_no_more_blocks_are_taken_over(prompt, hits, evicted, why):
    trace = second_request(prompt, hits, evicted)
    decision = block_decision(trace, 1, 1)
    assert block_steps(trace, 1) == [1]
    assert decision.answer == f"block:{hits[-1]}"
    assert why in decision.because
    several = "Which blocks can it take over? Point at the last of them."
    assert (several in decision.prompt) == (len(hits) > 1)
    assert decision.because.startswith("Blocks 0, 1" if len(hits) > 1 else "Block 0: A computed")
    if len(hits) > 1:
        assert "Block 0 is one of them, but not the last." in decision.verdict("block:0")[1]


def test_a_block_of_other_tokens_is_none_to_take_over():
    decision = block_decision(second_request([*range(6), *range(80, 86)], [0]), 1, 1)
    assert "Block 1 holds other tokens, or stands behind other tokens." in decision.verdict("block:1")[1]


def test_a_request_that_finds_its_own_blocks_again_is_asked_where_its_token_goes():
    trace = second_request(list(range(12)), [0, 1])
    come_back = [Preempt(1), Free(1, 5), Free(1, 1), Free(1, 0)]
    again = [Admit(1), Hit(1, 0, 0), Hit(1, 1, 1), Allocate(1, 2, 3), Schedule(((1, 4),))]
    trace.steps += [StepRecord(come_back), StepRecord(again)]
    decision = block_decision(trace, 1, 3)
    assert decision.prompt.startswith("B's tokens 9 to 12 are next.")
    assert decision.answer == "block:3"
