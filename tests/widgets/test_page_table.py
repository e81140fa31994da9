"""The page-table widget without a browser: traits, moves and questions."""

import pytest
import traitlets

from servelab.engine import allocation_trace
from servelab.figures import page_table_frame
from servelab.widgets import PageTableWidget


@pytest.fixture
def widget(hand_trace):
    return PageTableWidget(hand_trace, "A")


def test_it_starts_where_the_request_first_runs(hand_trace):
    assert (PageTableWidget(hand_trace).step, PageTableWidget(hand_trace).request) == (0, "A")
    assert PageTableWidget(hand_trace, "B").step == 1
    assert PageTableWidget(hand_trace, 0, step=3).block_table == [0, 1, 3]


def test_it_stops_at_each_moment_with_something_to_see(widget):
    seen = []
    while True:
        seen.append((widget.step, widget.moment))
        widget.advance()
        if (widget.step, widget.moment) == seen[-1]:
            break
    assert seen == [
        (0, "computed"), (1, "computed"), (2, "scheduled"), (2, "computed"), (3, "scheduled"), (3, "computed"),
        (4, "computed"), (5, "computed"), (5, "end"), (6, "scheduled"), (6, "computed"),
    ]  # fmt: skip


def test_every_frame_equals_the_trace(large_trace):
    widget = PageTableWidget(large_trace, "R7")
    for tick in range(0, widget.num_ticks, 37):
        widget.tick = tick
        state = large_trace.state_at(widget.step, widget.moment)
        assert widget.block_table == state.requests[large_trace.index_of("R7")].block_table


def test_step_moment_request_and_width_are_traits(widget, hand_trace):
    widget.step = 3
    assert (widget.tick, widget.moment) == (6, "computed")
    assert widget.frame == page_table_frame(hand_trace, 3, "A", width=900).to_json()
    widget.request = "B"
    assert (widget.step, widget.block_table) == (3, [2])
    widget.width = 640
    assert widget.frame["width"] == 640
    widget.width = 5_000
    assert widget.frame["width"] == 1_240


def test_what_next_pauses_before_the_decision_and_explains(widget):
    widget.asking = True
    widget.playing = True
    widget.advance()
    widget.advance()
    assert widget.question["prompt"].startswith("A's token 8 is next")
    assert widget.question["pointing"] == "block"
    assert not widget.playing
    assert (widget.step, widget.block_table) == (1, [0, 1])  # the answer is not shown yet
    widget.advance()
    assert widget.step == 1  # it waits for the answer
    widget.answer("block:4")
    assert widget.feedback["right"] is False
    assert "still has room" in widget.feedback["text"]
    assert (widget.step, widget.moment, widget.question) == (2, "computed", {})
    assert widget.frame["data"]["written"] == [[1, 3]]
    widget.advance()
    widget.answer("block:3")
    assert widget.feedback["right"] is True
    assert widget.score == [1, 2]


def test_a_decision_is_asked_once_and_can_be_skipped(widget):
    widget.next_decision()
    assert widget.asking
    widget.skip()
    assert widget.feedback["text"].startswith("Token 8 goes to slot 3 of block 1")
    assert widget.score == [0, 0]
    widget.step = 1
    widget.advance()
    assert widget.question == {}
    for _number in range(2):
        widget.next_decision()
        widget.skip()
    widget.next_decision()
    assert "no further decision" in widget.feedback["text"]


def test_moving_away_closes_the_question(widget):
    widget.next_decision()
    widget.tick = 0
    assert widget.question == {}
    with pytest.raises(ValueError, match="expected an open question, got the answer 'block:1' to none"):
        widget.answer("block:1")


def test_messages_of_the_front_end(widget):
    widget._received(widget, {"do": "advance", "by": 1, "from": widget.tick}, [])
    assert widget.step == 1
    widget._received(widget, {"do": "advance", "by": 1, "from": 0}, [])  # late: it was sent from another tick
    assert widget.step == 1
    widget._received(widget, {"do": "next_decision"}, [])
    widget._received(widget, {"do": "answer", "choice": "block:1"}, [])
    assert widget.feedback["right"] is True
    widget._received(widget, {"do": "nonsense"}, [])


def test_playing_ends_at_the_end(widget):
    widget.playing = True
    widget.tick = widget.num_ticks - 1
    assert widget.playing is False


def test_sentence_alt_and_static_figure(widget):
    widget.step = 3
    assert "which physical block holds each logical block" in widget.sentence
    assert widget.alt == "Page table of request A: 9 stored tokens in 3 blocks, block table [0, 1, 3]."
    assert widget.static_figure().layout.meta["alt"] == widget.alt


def test_all_its_words_are_there(widget):
    for name in ("play", "pause", "ask", "skip", "moment_scheduled", "moment_computed", "moment_end"):
        assert widget.words[name]


def test_bad_input(widget, holes_contiguous, hand_trace):
    with pytest.raises(ValueError, match="paged cache, got kv_cache='contiguous'"):
        PageTableWidget(holes_contiguous)
    with pytest.raises(ValueError, match="at least one step"):
        PageTableWidget(allocation_trace([], kv_cache="paged", num_slots=4, block_size=4))
    with pytest.raises(ValueError, match=r"expected a step in 0\.\.6, got 99"):
        widget.step = 99
    with pytest.raises(ValueError, match="got 'Z'"):
        widget.request = "Z"
    with pytest.raises(traitlets.TraitError):
        widget.tick = "two"


@pytest.mark.parametrize("trace", [None, 5, "trace.json", []])
def test_what_is_no_trace_is_refused(trace):
    with pytest.raises(ValueError, match=r"expected a Trace, such as engine\.trace, got"):
        PageTableWidget(trace)


@pytest.mark.parametrize("request_index", [-1, 99, 1.5, True])
def test_a_request_that_is_not_in_the_trace_is_refused(hand_trace, request_index):
    with pytest.raises(ValueError, match=r"expected a request id or an index in 0\.\.\d+, got"):
        PageTableWidget(hand_trace, request_index)
