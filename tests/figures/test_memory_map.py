"""The memory map counts every slot once, and says why a request waits."""

import json
import re
from collections import Counter

import pytest

from servelab.figures import memory_map_figure, memory_map_frame
from servelab.trace import occupancy


def _area(frame, style):
    """Number of boxes of one style in the paths of the map."""
    return sum(
        len(re.findall("M", mark["d"])) for mark in frame.marks if mark["shape"] == "path" and mark["style"] == style
    )


def test_the_hand_example_side_by_side(holes_contiguous, holes_paged):
    frame = memory_map_frame(holes_contiguous, 6, holes_paged)
    contiguous, paged = frame.data["pools"]
    assert contiguous["counts"] == {"used": 9, "reserved": 0, "internal": 0, "cached": 0, "external": 19, "free": 0}
    assert contiguous["waiting"] == ["E"]
    assert contiguous["refused"] == ["wait", 4, "no_memory", 9, 19, 7]
    assert paged["counts"] == {"used": 18, "reserved": 0, "internal": 6, "cached": 0, "external": 0, "free": 4}
    assert paged["running"] == ["B", "D", "E"]
    assert "E waits: needs 9 slots in a row; 19 free, longest run 7" in frame.caption
    assert "E admitted" in frame.caption


def test_counts_equal_the_occupancy_of_the_trace(large_trace):
    for step in (100, len(large_trace.steps) - 1):
        for moment in ("computed", "end"):
            counts = memory_map_frame(large_trace, step, moment=moment).data["pools"][0]["counts"]
            expected = Counter(slot.kind for slot in occupancy(large_trace, step, moment))
            assert {kind: count for kind, count in counts.items() if count} == dict(expected)
            assert sum(counts.values()) == large_trace.num_slots


def test_small_pools_draw_each_slot_with_its_token(holes_contiguous):
    frame = memory_map_frame(holes_contiguous, 3)
    assert _area(frame, "used") == 23
    assert _area(frame, "free") == 5
    assert "D7" in [mark.get("text") for mark in frame.marks]


def test_large_pools_draw_runs(large_trace):
    frame = memory_map_frame(large_trace, 100, large_trace, width=1200)
    assert len(frame.marks) < 60
    assert len(json.dumps(frame.to_json())) < 150_000
    assert frame.height < 480


def test_a_shorter_run_stays_at_its_end(holes_contiguous, hand_trace, large_trace):
    frame = memory_map_frame(hand_trace, 20, large_trace)
    assert "the run is over" in frame.caption
    assert frame.data["pools"][0]["running"] == ["A"]


@pytest.mark.parametrize("width", [560, 900, 1200])
def test_texts_stay_in_the_picture(holes_contiguous, holes_paged, width):
    frame = memory_map_frame(holes_contiguous, 6, holes_paged, width=width)
    assert all(0 <= mark["x"] <= width for mark in frame.marks if "x" in mark)
    assert all(mark["y"] <= frame.height for mark in frame.marks if "y" in mark)


def test_the_alt_text_says_the_finding(holes_contiguous, holes_paged):
    figure = memory_map_figure(holes_contiguous, 6, holes_paged, labels=("reserve", "blocks"))
    assert "reserve: of 28 slots 9 are used" in figure.layout.meta["alt"]
    assert "19 external waste" in figure.layout.meta["alt"]


def test_bad_input(holes_contiguous, holes_paged):
    with pytest.raises(ValueError, match=r"expected a step in 0\.\.6, got 9"):
        memory_map_frame(holes_contiguous, 9)
    with pytest.raises(ValueError, match="expected 2 labels, got 1"):
        memory_map_frame(holes_contiguous, 0, holes_paged, labels=["x"])


def test_what_is_kept_without_an_owner_is_told_from_what_is_free(shared_trace):
    frame = memory_map_frame(shared_trace, 3, moment="end")
    (pool,) = frame.data["pools"]
    assert pool["counts"] == {"used": 0, "reserved": 0, "internal": 0, "cached": 16, "external": 0, "free": 12}
    assert [style for style, _label in frame.legend].count("cached") == 1
    assert "16 cached" in frame.alt
    assert "cached" not in [style for style, _label in memory_map_frame(shared_trace, 0).legend]


def test_a_block_of_several_owners_is_counted_once(shared_trace):
    (pool,) = memory_map_frame(shared_trace, 1).data["pools"]
    assert sum(pool["counts"].values()) == 28
    assert pool["counts"]["used"] == 4 + 4 + 4 + 3  # blocks 0 (three owners), 1, 2 and 3
