"""Stacked bars of parts of a whole."""

import pytest

from servelab.figures import bars
from servelab.figures.theme import STYLES

ROWS = {"contiguous": {"used": 20, "internal": 60}, "paged": {"used": 90, "free": 10}}


def test_parts_take_the_colours_of_the_memory_map():
    figure = bars(ROWS, x_title="slots")
    assert [part.name for part in figure.data] == ["used", "internal", "free"]
    assert list(figure.data[1].x) == [60, 0]
    assert figure.data[1].marker.color == STYLES["internal"].fill[0]


def test_percent_scales_each_row():
    figure = bars(ROWS, x_title="%", percent=True)
    assert sum(part.x[0] for part in figure.data) == pytest.approx(100)
    assert figure.data[0].text[0] == "25 %"
