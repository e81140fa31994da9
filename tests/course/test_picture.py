import base64
import struct
import zlib

import plotly.graph_objects as go
import pytest

from servelab.course import show
from servelab.course.display import WIDGET
from servelab.course.picture import PLOTLY, recompressed


@pytest.fixture
def figure(monkeypatch):
    monkeypatch.setattr(go.Figure, "to_image", lambda self, **options: b"PNG")
    return go.Figure(go.Scatter(x=[1, 2], y=[1, 4]))


@pytest.fixture
def widget(figure):
    from ipywidgets import DOMWidget

    class Drawn(DOMWidget):
        sentence = "The table says **where**."
        alt = "Three blocks."

        def static_figure(self):
            return figure

    return Drawn()


def test_a_live_figure_keeps_its_data_and_says_its_sentence(figure, shown):
    bundle, caption = shown(show, figure, "It grows with the *square*.", "A curve.")
    assert bundle[PLOTLY]["data"][0]["type"] == "scatter"
    assert bundle["text/plain"] == "A curve."
    assert "image/png" not in bundle
    assert "<em>square</em>" in caption["text/html"]
    assert "A curve." in caption["text/html"]


def test_a_chart_fits_the_page_and_a_drawing_in_pixels_keeps_its_size(figure, shown):
    figure.update_layout(width=860, height=420)
    layout = shown(show, figure, "It grows.")[0][PLOTLY]["layout"]
    assert "width" not in layout
    assert layout["autosize"]
    assert layout["height"] == 420
    figure.update_xaxes(visible=False)
    assert shown(show, figure, "It grows.")[0][PLOTLY]["layout"]["width"] == 860


def test_a_figure_may_carry_its_own_texts(figure, shown):
    figure.update_layout(meta={"alt": "A <curve>.", "sentence": "It grows."})
    bundle, caption = shown(show, figure)
    assert bundle["text/plain"] == "A <curve>."
    assert "A &lt;curve&gt;." in caption["text/html"]


def test_a_live_widget_is_one_output_with_its_text(widget, shown):
    (bundle,) = shown(show, widget)
    assert bundle[WIDGET]["model_id"] == widget.model_id
    assert bundle["text/plain"] == "Three blocks."


def test_a_sentence_of_the_chapters_own_stands_below_the_widget(widget, shown):
    bundle, caption = shown(show, widget, "Another sentence.")
    assert WIDGET in bundle
    assert "Another sentence." in caption["text/html"]


@pytest.mark.usefixtures("solved")
def test_the_solved_edition_is_one_picture_with_its_text(widget, figure, shown):
    for thing in (widget, lambda: widget):
        (bundle,) = shown(show, thing)
        assert base64.b64decode(bundle["image/png"]) == b"PNG"
        assert 'alt="Three blocks."' in bundle["text/html"]
        assert "<strong>where</strong>" in bundle["text/html"]
        assert WIDGET not in bundle
    with pytest.raises(ValueError, match="expected alt or a sentence"):
        show(figure)


def test_the_solved_edition_may_keep_another_picture(widget, figure, shown, monkeypatch):
    """A widget waits at its first decision; the page without a kernel shows what comes of it."""
    figure.update_layout(meta={"alt": "Two tables, one block.", "sentence": "Both read it."})
    (bundle,) = shown(show, widget, picture=figure)
    assert bundle["text/plain"] == widget.alt
    monkeypatch.setenv("SERVELAB_EDITION", "solved")
    (bundle,) = shown(show, widget, picture=figure)
    assert 'alt="Two tables, one block."' in bundle["text/html"]
    assert "Both read it." in bundle["text/html"]


def test_text_is_shown_as_markdown_and_other_things_as_they_are(shown):
    assert shown(show, "**bold**")[0]["text/html"] == "<p><strong>bold</strong></p>"
    assert shown(show, 3)[0]["text/plain"] == "3"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_picture_takes_fewer_bytes_and_keeps_every_pixel():
    header, pixels = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0), bytes(range(193)) * 64
    loose = zlib.compress(pixels, 0)
    data = [chunk(b"IDAT", loose[:100]), chunk(b"IDAT", loose[100:])]
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(data) + chunk(b"IEND", b"")
    smaller = recompressed(png)
    start = len(png) - len(b"".join(data)) - 12
    assert smaller[:start] == png[:start]
    assert len(smaller) < len(png) / 2
    (length,) = struct.unpack_from(">I", smaller, start)
    assert zlib.decompress(smaller[start + 8 : start + 8 + length]) == pixels
    assert smaller.endswith(chunk(b"IEND", b""))


@pytest.mark.slow
@pytest.mark.usefixtures("solved")
def test_kaleido_draws_the_picture(shown):
    pytest.importorskip("kaleido")
    (bundle,) = shown(show, go.Figure(go.Scatter(x=[1], y=[1])), "A point.")
    assert base64.b64decode(bundle["image/png"])[:8] == b"\x89PNG\r\n\x1a\n"
