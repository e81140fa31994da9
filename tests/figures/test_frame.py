"""The frame: one description, drawn by two renderers."""

import json

from servelab.figures import Frame, frame_figure
from servelab.figures.frame import fit, rects_path, text_width


def _frame():
    frame = Frame("test", 300, 100, legend=[("used", "used"), ("free", "free")], alt="two cells", sentence="say this")
    frame.rect(10, 10, 40, 20, "used", "A1", title="token 1")
    frame.path(rects_path([(60, 10, 20, 20), (90, 10, 20, 20)]), "free")
    frame.text(10, 60, "a < b & c", bold=True)
    frame.dot(200, 50, 5, "point")
    return frame


def test_a_frame_is_plain_json():
    frame = _frame()
    assert json.loads(json.dumps(frame.to_json())) == frame.to_json()
    assert frame.to_json()["legend"] == [["used", "used"], ["free", "free"]]


def test_plotly_draws_every_mark_and_the_legend():
    figure = frame_figure(_frame())
    shapes = figure.layout.shapes
    assert [shape.type for shape in shapes] == ["rect", "path", "circle", "rect", "rect", "path"]
    assert (shapes[0].x0, shapes[0].x1, shapes[0].y0, shapes[0].y1) == (10, 50, 10, 30)
    assert shapes[1].path.startswith("M60.0,10.0L80.0,10.0L80.0,30.0L60.0,30.0Z")
    texts = [text for trace in figure.data for text in trace.text]
    assert "A1" in texts
    assert "<b>a &lt; b &amp; c</b>" in texts
    assert {"used", "free"} <= set(texts)
    assert figure.layout.meta["alt"] == "two cells"


def test_an_empty_path_draws_nothing():
    frame = Frame("test", 100, 100)
    frame.path(rects_path([]), "free")
    assert frame.marks == []


def test_text_is_cut_to_its_room():
    assert fit("hello", 100) == "hello"
    shown = fit("internationalization", 60)
    assert shown.endswith("…")
    assert text_width(shown) <= 60
    assert fit("hello", 4) == ""


def test_chinese_text_is_wider_than_latin():
    assert text_width("缓存缓存") > text_width("abcd")
