"""The memory-map widget without a browser."""

import pytest

from servelab.engine import allocation_trace
from servelab.widgets import MemoryMapWidget


@pytest.fixture
def widget(holes_contiguous, holes_paged):
    return MemoryMapWidget(holes_contiguous, holes_paged, labels=("rows", "blocks"))


def test_both_runs_move_together(widget, holes_contiguous, holes_paged):
    widget.step = 6
    rows, blocks = widget.counts
    assert (rows["external"], rows["used"]) == (19, 9)
    assert (blocks["used"], blocks["internal"]) == (18, 6)
    assert widget.num_steps == 7


def test_what_next_asks_where_the_request_is_admitted(widget):
    widget.step = 5
    widget.asking = True
    for _number in range(3):
        widget.advance()
    assert "E is first in line" in widget.question["prompt"]
    assert widget.step == 5
    with pytest.raises(ValueError, match="expected one of"):
        widget.answer("maybe")
    widget.answer("second")
    assert widget.feedback["right"] is True
    assert "longest run has only 7" in widget.feedback["text"]
    assert widget.step == 6


def test_one_pool_alone(large_trace):
    widget = MemoryMapWidget(large_trace, step=100)
    assert sum(widget.counts[0].values()) == large_trace.num_slots
    assert widget.labels == ["Paged, blocks of 16"]
    assert widget.static_figure(640).layout.width == 640


def test_bad_input(holes_contiguous):
    with pytest.raises(ValueError, match="at least one step"):
        MemoryMapWidget(holes_contiguous, allocation_trace([], kv_cache="paged", num_slots=4, block_size=4))
    with pytest.raises(ValueError, match=r"expected a step in 0\.\.6, got 7"):
        MemoryMapWidget(holes_contiguous, step=7)


def test_what_is_no_trace_and_no_list_of_names_is_refused(hand_trace):
    for traces in ((None,), (hand_trace, 5)):
        with pytest.raises(ValueError, match=r"expected a Trace, such as engine\.trace, got"):
            MemoryMapWidget(*traces)
    with pytest.raises(ValueError, match="expected labels as a list of names, got 'paged'"):
        MemoryMapWidget(hand_trace, labels="paged")
