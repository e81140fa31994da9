"""`StopStrings`: the text ends before the first stop string, no part of it is shown, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.engine.stop import StopStrings


def shown(pieces, strings):
    """What is shown after each piece and at the end."""
    stop = StopStrings(strings)
    return [stop.feed(piece) for piece in pieces] + [stop.flush()], stop.found


def reference(text, strings):
    """Read the text character by character: the first stop string that is complete ends it, the longest one there."""
    for end in range(1, len(text) + 1):
        starts = [end - len(string) for string in strings if text[:end].endswith(string)]
        if starts:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize(
    ("pieces", "strings", "expected"),
    [
        (["a", "b", "c"], ["bc"], ["a", "", "", ""]),
        (["a", "b", "d"], ["bc"], ["a", "", "bd", ""]),
        (["a", "b"], ["bc"], ["a", "", "b"]),
        (["one END two", " three"], ["END"], ["one ", "", ""]),
        (["aab", "c"], ["abc"], ["a", "", ""]),
        (["aaab"], ["aab"], ["a", ""]),
        (["x\n", "\n", "y"], ["\n\n"], ["x", "", "", ""]),
        (["abcd"], ["cd", "bcd"], ["a", ""]),
        (["abcd"], ["abcde", "bc"], ["a", ""]),
        (["日本", "語です"], ["語"], ["日本", "", ""]),
        (["stop"], ["stop"], ["", ""]),
    ],
)
def test_what_is_shown_after_each_piece(pieces, strings, expected):
    assert shown(pieces, strings)[0] == expected


def test_nothing_comes_after_a_stop_string():
    assert shown(["a.", "b", ".", "c"], ["."]) == (["a", "", "", "", ""], True)


@given(
    text=st.text("ab", max_size=24),
    strings=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 24), max_size=8),
)
def test_how_the_text_is_cut_into_pieces_changes_nothing(text, strings, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in itertools.pairwise(bounds)]
    told, found = shown(pieces, strings)
    assert ("".join(told), found) == reference(text, strings)


@given(text=st.text("ab", max_size=16), strings=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_may_become_a_stop_string(text, strings):
    """What is held is the longest end of the text with which a stop string begins."""
    expected, found = reference(text, strings)
    told, _ = shown(list(text), strings)
    if not found:
        held = next((n for n in range(len(text), 0, -1) if any(s.startswith(text[-n:]) for s in strings)), 0)
        assert "".join(told[:-1]) == expected[: len(text) - held]
