"""Line charts of measured series."""

import pytest

from servelab.figures import curve
from servelab.figures.curve import log_ticks


def test_series_differ_by_more_than_colour():
    figure = curve(
        [1, 2, 3], {"cached": [1, 2, 3], "uncached": [1, 4, 9]}, x_title="tokens", y_title="s", marks={"half": 2}
    )
    first, second = figure.data
    assert list(second.y) == [1, 4, 9]
    assert first.line.dash != second.line.dash
    assert first.marker.symbol != second.marker.symbol
    assert figure.layout.shapes[0].x0 == 2
    assert figure.layout.xaxis.title.text == "tokens"


def test_log_axes_and_bad_lengths():
    assert curve([1, 2], {"a": [1, 2]}, x_title="", y_title="", log_x=True).layout.xaxis.type == "log"
    with pytest.raises(ValueError, match="expected 2 values for 'a', got 3"):
        curve([1, 2], {"a": [1, 2, 3]}, x_title="", y_title="")


def test_a_logarithmic_axis_names_round_values_in_full():
    assert log_ticks([0.3, 40]) == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500])
    assert log_ticks([3, 4000]) == [1, 10, 100, 1000, 10_000]
    figure = curve([1, 2], {"a": [30, 90]}, x_title="", y_title="", log_y=True)
    assert list(figure.layout.yaxis.ticktext) == ["10", "20", "50", "100", "200", "500"]
