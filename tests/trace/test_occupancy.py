"""`occupancy` and `waste` against examples counted by hand."""

from collections import Counter

import pytest

from servelab.engine import Engine, EngineConfig, allocation_trace
from servelab.sampling import SamplingParams
from servelab.trace import (
    Admit,
    Allocate,
    Cache,
    Copy,
    Finish,
    Fork,
    Free,
    Hit,
    Preempt,
    Release,
    RequestRecord,
    Schedule,
    Slot,
    StepRecord,
    Trim,
    Verify,
    Waste,
    occupancy,
    waste,
)

PLACED = [("place", "A", 7), ("place", "B", 2), ("place", "C", 7), ("place", "D", 7)]
HAND = [*PLACED, ("free", "A"), ("free", "C"), ("place", "E", 9)]


def picture(trace, step, moment="computed"):
    """One letter a slot: the owner's where it is used; r reserved, i internal, c cached, . free, x external."""
    names = [request.request_id for request in trace.requests]
    marks = {"reserved": "r", "internal": "i", "cached": "c", "free": ".", "external": "x"}
    return "".join(marks.get(slot.kind) or names[slot.request] for slot in occupancy(trace, step, moment))


def test_contiguous_slots_of_the_hand_example():
    """28 slots: 19 are free, the largest hole has 7, a request of 9 is refused: all 19 are external waste."""
    trace = allocation_trace(HAND, kv_cache="contiguous", num_slots=28)
    assert picture(trace, 3) == "AAAAAAABBCCCCCCCDDDDDDD....."
    assert picture(trace, 6) == "xxxxxxxBBxxxxxxxDDDDDDDxxxxx"
    assert trace.steps[6].events[-1].to_json() == ["wait", 4, "no_memory", 9, 19, 7]


def test_paged_slots_of_the_hand_example():
    """In blocks of 4 the request of 9 takes three blocks from wherever they are: 1, 0, 4."""
    trace = allocation_trace(HAND, kv_cache="paged", num_slots=28, block_size=4)
    assert picture(trace, 3) == "AAAAAAAiBBiiCCCCCCCiDDDDDDDi"
    assert picture(trace, 6) == "EEEEEEEEBBii....EiiiDDDDDDDi"
    assert trace.state_at(6).requests[4].block_table == [1, 0, 4]


def test_waste_of_the_hand_example():
    """Used: 7, 9, 16, 23, 23, 16, 9 (a freed request is still there when its step is computed)."""
    trace = allocation_trace(HAND, kv_cache="contiguous", num_slots=28)
    assert waste(trace) == Waste(used=103, reserved=0, internal=0, free=74, external=19)
    assert waste(trace).total == 7 * 28


def test_what_will_be_used_is_reserved_and_what_never_is_is_internal():
    """A reserves 6 slots, stores 2, then 2 more, and ends with 2 unused: in step 0 two are reserved, two internal."""
    operations = [("place", "A", 2, 6), ("append", "A", 2), ("free", "A")]
    trace = allocation_trace(operations, kv_cache="contiguous", num_slots=8)
    assert [picture(trace, step) for step in range(3)] == ["AArrii..", "AAAAii..", "AAAAii.."]
    assert picture(trace, 2, "end") == "........"
    assert waste(trace) == Waste(used=10, reserved=2, internal=6, free=6, external=0)


def test_before_the_rows_are_written_their_slots_are_reserved():
    trace = allocation_trace(PLACED, num_slots=28, block_size=4)
    assert picture(trace, 0, "scheduled") == "rrrrrrri" + "." * 20


def test_a_slot_knows_its_owner_and_the_owners_token():
    trace = allocation_trace([*PLACED, ("free", "A"), ("place", "E", 3)], num_slots=32, block_size=4)
    assert occupancy(trace, 1)[9] == Slot("used", request=1, position=1)
    assert occupancy(trace, 1)[31] == Slot("free")


def test_free_memory_that_is_simply_too_little_is_not_external():
    operations = [("place", "A", 5), ("place", "B", 4)]
    trace = allocation_trace(operations, kv_cache="contiguous", num_slots=8)
    assert picture(trace, 1) == "AAAAA..."


def test_holes_that_closed_at_the_end_of_the_step_are_not_external(toy_model):
    """In step 1 request 3 needs 5 slots: 2 and 3 are free. Then request 2 leaves, and its 3 join the last hole."""
    config = EngineConfig(kv_cache="contiguous", reserve="exact", block_size=1, num_blocks=12)
    engine = Engine(toy_model, config)
    for name, num_prompt_tokens, max_tokens in (("A", 1, 1), ("B", 1, 3), ("C", 1, 2), ("D", 3, 2)):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        engine.add_request([1] * num_prompt_tokens, params, request_id=name)
    while engine.has_unfinished():
        engine.step()
    assert picture(engine.trace, 0) == "AiBrriCri..."
    assert picture(engine.trace, 1) == "xxBBriCCixxx"
    assert picture(engine.trace, 1, "end") == "..BBri......"


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(block_size=4, num_blocks=9, max_num_seqs=4, max_num_batched_tokens=8),
        EngineConfig(kv_cache="contiguous", reserve="exact", block_size=1, num_blocks=40, max_num_seqs=4),
        EngineConfig(kv_cache="contiguous", reserve="max", max_model_len=20, block_size=1, num_blocks=40),
    ],
)
def test_waste_counts_what_occupancy_lists(toy_model, config):
    """On real runs, with preemptions in the first: the two ways of counting agree, and nothing is counted twice."""
    engine = Engine(toy_model, config)
    prompts = [[5] * length for length in (3, 9, 1, 7, 4, 8)]
    engine.generate(prompts, [SamplingParams(max_tokens=m, ignore_eos=True) for m in (9, 4, 12, 1, 7, 5)])
    check_waste(engine.trace)


def test_fractions_add_up_to_one():
    total = waste(allocation_trace(HAND, num_slots=28, block_size=4))
    kinds = ("used", "reserved", "internal", "free", "external")
    assert sum(map(total.fraction, kinds)) == pytest.approx(1)
    assert total.used_of_owned == pytest.approx(112 / 140)
    assert (Waste().fraction("used"), Waste().used_of_owned) == (0, 0)
    with pytest.raises(ValueError, match=r"expected a kind in .*, got 'lost'"):
        total.fraction("lost")


def test_a_hole_that_is_just_long_enough_is_no_external_waste():
    """C needs 4 slots and the holes have 3 and 3; in the same step B ends, and the first hole grows to 4."""
    operations = [("place", "A", 3), ("place", "B", 1), ("place", "X", 3), ("free", "A"), ("place", "C", 4)]
    trace = allocation_trace(operations, kv_cache="contiguous", num_slots=10)
    trace.steps[4].events += [Finish(1, "stop"), Release(1, 3, 1)]
    assert picture(trace, 4, "computed") == "xxxBXXXxxx"
    assert picture(trace, 4, "end") == "....XXX..."


def test_holes_that_would_just_do_together_are_external_waste():
    operations = [("place", "A", 3), ("place", "B", 1), ("place", "X", 3), ("free", "A"), ("place", "C", 4)]
    trace = allocation_trace(operations, kv_cache="contiguous", num_slots=8)
    assert picture(trace, 4) == "xxxBXXXx"


def test_what_was_stored_before_a_preemption_is_not_counted_again():
    """B stores 3 tokens, loses its block, and starts again with 2: the end of its new block is never used."""
    trace = allocation_trace([("place", "B", 3)], num_slots=8, block_size=4)
    trace.steps += [
        StepRecord([Preempt(0), Free(0, 0)]),
        StepRecord([Admit(0), Allocate(0, 0, 1), Schedule(((0, 2),))]),
    ]
    assert picture(trace, 0) == "BBBi...."
    assert picture(trace, 2, "scheduled") == "....rrii"
    assert picture(trace, 2) == "....BBii"
    assert waste(trace) == Waste(used=5, reserved=0, internal=3, free=16, external=0)


def test_a_shared_slot_is_what_it_is_to_the_one_that_uses_it_most():
    """A stores 5 tokens in blocks of 4 and is forked; then A stores one more, and B, which has its own copy, two."""
    trace = allocation_trace([("place", "A", 5)], num_slots=16, block_size=4)
    trace.requests.append(RequestRecord("B", [1] * 5, 2, [6, 6]))
    trace.steps[0].events.append(Fork(1, 0))
    trace.steps += [StepRecord([Copy(1, 1, 1, 2), Schedule(((0, 1), (1, 1)))]), StepRecord([Schedule(((1, 1),))])]
    assert picture(trace, 0, "computed") == "AAAAArri........"
    assert picture(trace, 1, "scheduled") == "AAAAAriiBrri...."
    assert picture(trace, 2) == "AAAAAAiiBBBi...."
    check_waste(trace)
    trace.steps.append(StepRecord([Free(0, 1), Free(0, 0), Finish(0, "stop")]))
    assert picture(trace, 3, "end") == "BBBB....BBBi...."


def test_a_block_without_an_owner_that_can_be_found_is_cached():
    trace = allocation_trace([("place", "A", 5), ("free", "A"), ("place", "B", 5)], num_slots=16, block_size=4)
    trace.requests[1].token_texts = [f"B{number}" for number in range(1, 6)]
    trace.steps[0].events.append(Cache(0, 0, 0))
    trace.steps[2].events[2:] = [Hit(1, 0, 0), Allocate(1, 1, 2), Schedule(((1, 1),))]
    assert picture(trace, 1, "end") == "cccc............"
    assert occupancy(trace, 1, "end")[2] == Slot("cached", request=0, position=2)
    assert picture(trace, 2, "scheduled") == "BBBB....riii...."
    assert waste(trace, "end") == Waste(used=10, reserved=0, internal=6, cached=4, free=28, external=0)
    check_waste(trace)


def test_a_rejected_draft_leaves_its_slots_to_what_comes():
    """Of 4 draft tokens 1 is kept; the last slots are written again later, or never."""
    trace = allocation_trace([("place", "A", 3)], num_slots=12, block_size=4)
    verify = Verify(0, (5,) * 4, (1.0, 0.0, 0.0, 0.0), (0.0,) * 4, 1)
    trace.steps += [StepRecord([Allocate(0, 1, 1), Schedule(((0, 5),)), verify]), StepRecord([Schedule(((0, 1),))])]
    assert picture(trace, 1, "scheduled") == "AAArrrii...."
    assert picture(trace, 1) == "AAAAArii...."
    check_waste(trace)


def test_blocks_of_rejected_drafts_are_never_used_by_who_had_them():
    """8 draft tokens, all rejected: one block goes back, though its owner later takes one for the same positions."""
    trace = allocation_trace([("place", "A", 3)], num_slots=16, block_size=4)
    verify = Verify(0, (5,) * 8, (0.0,) * 8, (0.0,) * 8, 0)
    drafting = [Allocate(0, 1, 1), Allocate(0, 2, 2), Schedule(((0, 9),)), verify, Trim(0, 2)]
    trace.steps += [StepRecord(drafting), StepRecord([Allocate(0, 2, 2), Schedule(((0, 6),))])]
    assert picture(trace, 1, "scheduled") == "AAArrrrriiii...."
    assert picture(trace, 1) == "AAAArrrr........"
    assert picture(trace, 2) == "AAAAAAAAAAii...."
    check_waste(trace)


def check_waste(trace):
    for moment in ("scheduled", "computed", "end"):
        counts = Counter(slot.kind for step in range(len(trace.steps)) for slot in occupancy(trace, step, moment))
        total = waste(trace, moment)
        assert {kind: getattr(total, kind) for kind in counts} == counts
        assert total.total == trace.num_slots * len(trace.steps)
