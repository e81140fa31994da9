"""Line charts of measured series."""

import pytest

from servelab.figures import curve


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
