"""The page table shows exactly what the trace holds."""

import json

import pytest

from servelab.engine import allocation_trace
from servelab.figures import free_blocks, page_table_figure, page_table_frame
from servelab.trace import (
    Admit,
    Allocate,
    Arrive,
    Cache,
    Emit,
    Finish,
    Free,
    Hit,
    RequestRecord,
    Schedule,
    StepRecord,
    Trace,
)


def _texts(frame):
    return [mark.get("text", "") for mark in frame.marks]


def _grid(frame):
    return next(mark for mark in frame.marks if mark["shape"] == "grid")


def test_the_hand_example(hand_trace):
    eighth = page_table_frame(hand_trace, 2, "A").data
    assert eighth["block_table"] == [0, 1]
    assert eighth["written"] == [[1, 3]]
    assert eighth["new_blocks"] == []
    ninth = page_table_frame(hand_trace, 3, "A").data
    assert ninth["block_table"] == [0, 1, 3]
    assert ninth["written"] == [[3, 0]]
    assert ninth["new_blocks"] == [3]


def test_before_computing_the_slot_is_planned_and_not_written(hand_trace):
    frame = page_table_frame(hand_trace, 3, "A", "scheduled")
    assert frame.data["planned"] == [[3, 0]]
    assert frame.data["written"] == []
    assert frame.data["stored"] == 8
    assert "gets block 3" in frame.caption
    assert any(mark.get("style") == "next" and mark.get("text") == "A9" for mark in frame.marks)


def test_every_moment_of_every_request_equals_the_trace(large_trace):
    for step in (70, len(large_trace.steps) - 1):
        for moment in ("scheduled", "computed", "end"):
            state = large_trace.state_at(step, moment)
            for request in (0, 7, 59):
                data = page_table_frame(large_trace, step, request, moment).data
                assert data["block_table"] == state.requests[request].block_table
                taken = {block for item in state.requests for block in item.block_table}
                assert sorted(data["free_blocks"]) == sorted(set(range(large_trace.num_blocks)) - taken)


def test_a_new_block_is_the_one_at_the_head_of_the_free_queue(hand_trace):
    assert free_blocks(hand_trace, 2, "end")[0] == 3 == page_table_frame(hand_trace, 3, "A").data["new_blocks"][0]
    assert free_blocks(hand_trace, 5, "end") == [4, 5, 6, 2]
    assert free_blocks(hand_trace, -1) == list(range(7))


def test_cells_show_the_tokens_own_text(hand_trace):
    texts = _texts(page_table_frame(hand_trace, 3, "A"))
    assert texts.count("A9") == 2  # in the logical block and in the physical one
    assert "B1" not in texts


def test_prompt_and_output_tokens_look_different(hand_trace):
    marks = page_table_frame(hand_trace, 4, "A").marks
    styles = {mark["text"]: mark["style"] for mark in marks if mark.get("text", "").startswith("A")}
    assert styles["A7"] == "prompt"
    assert styles["A8"] == "output"


def test_the_grid_knows_whose_each_block_is(hand_trace):
    assert _grid(page_table_frame(hand_trace, 3, "A"))["kinds"] == "xxox..."
    assert _grid(page_table_frame(hand_trace, 5, "B", "end"))["kinds"] == "oo.o..."


def test_a_request_without_blocks_says_why(hand_trace):
    assert "has not arrived" in page_table_frame(hand_trace, 0, "B").caption
    assert "has finished" in page_table_frame(hand_trace, 5, "B", "end").caption


@pytest.mark.parametrize("width", [560, 640, 900, 1200])
def test_nothing_leaves_the_picture(hand_trace, large_trace, width):
    for trace, request in ((hand_trace, "A"), (large_trace, "R7")):
        frame = page_table_frame(trace, len(trace.steps) - 1, request, width=width)
        for mark in frame.marks:
            if mark["shape"] == "rect":
                assert mark["x"] >= 0
                assert mark["x"] + mark["w"] <= width
                assert mark["y"] + mark["h"] <= frame.height
            if mark.get("text"):
                assert mark.get("size", 13) >= 12


def test_a_large_pool_stays_light(large_trace):
    frame = page_table_frame(large_trace, len(large_trace.steps) - 1, "R7")
    assert len(frame.marks) < 400
    assert len(json.dumps(frame.to_json())) < 100_000
    assert frame.height < 560
    hidden = [text for text in _texts(frame) if "more full blocks" in text]
    assert len(hidden) == 1


def test_the_figure_has_the_same_texts(hand_trace):
    figure = page_table_figure(hand_trace, 3, "A")
    drawn = " ".join(text for trace in figure.data for text in trace.text)
    assert "A9" in drawn
    assert "[0, 1, 3]" in figure.layout.meta["alt"]


def test_bad_input(hand_trace, holes_contiguous):
    with pytest.raises(ValueError, match="expected a trace of a paged cache, got kv_cache='contiguous'"):
        page_table_frame(holes_contiguous, 0)
    with pytest.raises(ValueError, match=r"expected a request in 0\.\.1, got 2"):
        page_table_frame(hand_trace, 0, 2)
    with pytest.raises(ValueError, match=r"expected a step in 0\.\.6, got 7"):
        page_table_frame(hand_trace, 7)
    with pytest.raises(ValueError, match="got 'Z'"):
        page_table_frame(hand_trace, 0, "Z")


def test_no_curve_crosses_the_free_queue():
    trace = allocation_trace([("place", "A", 42)], kv_cache="paged", num_slots=192, block_size=16)
    frame = page_table_frame(trace, 0, "A")
    (label,) = (mark for mark in frame.marks if mark.get("text") == "Free, next first:")
    entries = [mark for mark in frame.marks if mark.get("style") in ("entry", "entry-new")]
    assert len(entries) == 3
    assert label["y"] >= max(mark["y"] for mark in entries)


def test_a_shared_block_names_all_its_owners(shared_trace):
    frame = page_table_frame(shared_trace, 1, "C")
    assert frame.data["block_table"] == [0, 3]
    assert frame.data["shared_blocks"] == [0]
    assert frame.data["hits"] == [0]
    assert "C, A, A-1" in _texts(frame)
    assert [mark["style"] for mark in frame.marks if mark.get("text") == "0"].count("entry-shared") == 1
    assert ("shared", "several owners") in frame.legend
    assert "Block 0 is shared with A, A-1." in frame.alt
    assert "computed once and stored once" in frame.sentence


def test_tokens_of_a_hit_are_there_before_anything_is_computed(shared_trace):
    before = page_table_frame(shared_trace, 1, "C", "scheduled")
    assert before.data["stored"] == 4
    assert before.data["planned"] == [[3, 0], [3, 1], [3, 2]]
    assert "C takes over block 0: its first 4 tokens are not computed again. C gets block 3" in before.caption


def test_the_first_write_to_a_shared_block_goes_to_a_copy(shared_trace):
    before = page_table_frame(shared_trace, 1, "A", "scheduled")
    assert before.data["copies"] == [[1, 2]]
    assert before.data["new_blocks"] == [2]
    assert before.caption == "Step 2, before computing. Block 1 is A-1's too, so A writes into a copy: block 2."
    assert [mark["style"] for mark in before.marks if mark.get("style", "").startswith("copy")] == ["copy", "copy-head"]
    after = page_table_frame(shared_trace, 1, "A")
    assert after.data["written"] == [[2, 3]]
    second = page_table_frame(shared_trace, 1, "A-1")
    assert (second.data["copies"], second.data["written"]) == ([], [[1, 3]])


def test_a_fork_begins_with_its_parents_table(shared_trace):
    frame = page_table_frame(shared_trace, 0, "A-1")
    assert frame.data["block_table"] == [0, 1]
    assert frame.data["shared_blocks"] == [0, 1]
    assert "A-1 begins with the whole table of A: 7 tokens" in frame.caption


def test_a_kept_block_shows_what_it_still_holds(shared_trace):
    frame = page_table_frame(shared_trace, 3, "C", "end")
    assert frame.data["cached_blocks"] == [0, 1, 2, 3]
    assert frame.data["free_blocks"] == [5, 6, 2, 4, 1, 3, 0]
    assert [mark["text"] for mark in frame.marks if mark.get("style", "") == "cached"][:4] == [
        "The",
        "sky",
        "is",
        "blue",
    ]
    assert _texts(frame).count("kept") == 4
    assert _grid(frame)["kinds"] == "cccc..."
    assert ("cached", "no owner, content kept") in frame.legend
    assert "Kept without an owner: 0, 1, 2, 3." in frame.alt


def test_a_kept_block_is_forgotten_when_it_is_handed_out(shared_trace):
    frame = page_table_frame(shared_trace, 4, "D", "scheduled")
    assert frame.data["forgotten"] == [2]
    assert "D gets block 5, 6, 2 from the pool. What block 2 had kept is forgotten." in frame.caption
    assert frame.data["cached_blocks"] == [0, 1, 3]


def test_before_a_request_has_blocks_it_sees_what_the_others_hold(shared_trace):
    held = [
        mark["text"]
        for mark in page_table_frame(shared_trace, 0, "C", "end").marks
        if mark.get("style") == "other" and mark.get("text")
    ]
    assert held == ["The", "sky", "is", "blue", "bec…", "of", "the"]
    assert not any(
        mark.get("text") for mark in page_table_frame(shared_trace, 1, "C").marks if mark.get("style") == "other"
    )


def test_the_grid_tells_shared_from_own_and_kept_from_free(shared_trace):
    assert _grid(page_table_frame(shared_trace, 1, "C"))["kinds"] == "soox..."
    assert _grid(page_table_frame(shared_trace, 2, "C", "end"))["kinds"] == "soc" + "x..."
    labels = _grid(page_table_frame(shared_trace, 1, "C"))["labels"]
    assert set(labels) == set("xsoc.")


@pytest.mark.parametrize("width", [560, 900])
def test_sharing_in_a_large_pool_of_tiles(width):
    trace = _many_blocks()
    frame = page_table_frame(trace, 1, "B", width=width)
    assert _grid(frame)["kinds"][:4] == "ssox"
    assert "B takes over blocks 0, 1: its first 32 tokens" in page_table_frame(trace, 1, "B", "scheduled").caption
    outlines = [mark for mark in frame.marks if mark.get("style", "") == "shared" and mark["shape"] == "rect"]
    assert len(outlines) == 2
    frame = page_table_frame(trace, 2, "B", "end", width=width)
    assert any(mark.get("style") == "cached" and mark["shape"] == "path" for mark in frame.marks)


def test_many_shared_and_kept_blocks_are_not_listed_one_by_one():
    trace = Trace("paged", num_blocks=40, block_size=4, max_num_seqs=2)
    trace.requests = [RequestRecord(name, list(range(42)), 1, token_texts=["x"] * 42) for name in "AB"]
    computed = [*(Allocate(0, n, n) for n in range(11)), Schedule(((0, 42),)), *(Cache(0, n, n) for n in range(10))]
    again = [*(Hit(1, n, n) for n in range(10)), Allocate(1, 10, 11), Schedule(((1, 2),))]
    ends = [event for request, last in ((0, 10), (1, 11)) for event in
            (Finish(request, "length"), *(Free(request, block) for block in (last, *range(9, -1, -1))))]  # fmt: skip
    trace.steps = [
        StepRecord([Arrive(0), Admit(0), *computed]),
        StepRecord([Arrive(1), Admit(1), *again]),
        StepRecord(ends),
    ]
    assert page_table_frame(trace, 1, "B").alt.endswith("10 of its blocks are shared.")
    assert "takes over blocks 0, 1, 2, …, 9:" in page_table_frame(trace, 1, "B", "scheduled").caption
    assert page_table_frame(trace, 2, "B", "end").alt.endswith("Kept without an owner: 0, 1, 2, …, 9.")


def _many_blocks():
    """Blocks of 16, a pool of 40: B begins with the 32 tokens of A's first two blocks; then both leave."""
    trace = Trace("paged", num_blocks=40, block_size=16, max_num_seqs=2)
    trace.requests = [
        RequestRecord("A", list(range(35)), 2, [1], [f"A{number}" for number in range(36)]),
        RequestRecord("B", [*range(32), 99, 98], 1, [1], [f"B{number}" for number in range(35)]),
    ]
    first = [Arrive(0), Admit(0), *(Allocate(0, index, index) for index in range(3))]
    hits = [Hit(1, 0, 0), Hit(1, 1, 1), Allocate(1, 2, 3)]
    trace.steps = [
        StepRecord([*first, Schedule(((0, 35),)), Emit(((0, 1),)), Cache(0, 0, 0), Cache(0, 1, 1)]),
        StepRecord([Arrive(1), Admit(1), *hits, Schedule(((1, 2),)), Emit(((1, 1),))]),
        StepRecord([
            Finish(0, "abort"), *(Free(0, block) for block in (2, 1, 0)),
            Finish(1, "abort"), *(Free(1, block) for block in (3, 1, 0)),
        ]),
    ]  # fmt: skip
    return trace
