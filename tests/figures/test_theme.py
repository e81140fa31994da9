"""Colours: text that can be read on both themes."""

import itertools

import plotly.graph_objects as go
import pytest

from servelab.figures.theme import CARD, INK, MIN_TEXT, SERIES, STYLES, card, ink_on

LAB_DARK = "#111111"
WITH_TEXT = [
    "prompt", "output", "new", "next", "other", "free", "used", "reserved", "internal", "external", "weights", "kv",
    "over", "entry", "entry-new",
]  # fmt: skip


def _luminance(color):
    channels = [int(color[position : position + 2], 16) / 255 for position in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first, second):
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("name", WITH_TEXT)
def test_text_on_a_mark_has_contrast(name, theme):
    style = STYLES[name]
    assert _contrast(style.fill[theme], style.ink[theme]) >= 4.5


@pytest.mark.parametrize(("theme", "page"), [(0, CARD), (1, LAB_DARK)])
@pytest.mark.parametrize("name", ["ink", "muted"])
def test_text_on_the_page_has_contrast(name, theme, page):
    assert _contrast(STYLES[name].ink[theme], page) >= 4.5


def test_the_kinds_of_slots_differ_in_lightness_too():
    kinds = ["used", "reserved", "internal", "free"]
    levels = sorted(_luminance(STYLES[kind].fill[0]) for kind in kinds)
    assert all(high - low > 0.1 for low, high in itertools.pairwise(levels))


def test_a_card_is_opaque_and_its_text_large_enough():
    figure = card(go.Figure(), title="A title")
    assert figure.layout.paper_bgcolor == CARD
    assert figure.layout.xaxis.tickfont.size >= MIN_TEXT
    assert figure.layout.title.text == "A title"


@pytest.mark.parametrize("fill", SERIES)
def test_the_ink_on_a_series_stands_out_more_than_the_other(fill):
    ink = ink_on(fill)
    (other,) = {"#FFFFFF", INK} - {ink}
    assert _contrast(ink, fill) >= max(4.0, _contrast(other, fill))
