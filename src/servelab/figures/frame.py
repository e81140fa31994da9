"""`Frame`: a picture as plain data, drawn alike by the live widgets (SVG) and by Plotly (`frame_figure`).

All layout happens here in Python, where it can be tested without a browser; the front end only draws. Coordinates
are pixels, x to the right and y down. A mark is a dict of JSON values with a "shape":

- "rect": x, y, w, h, style; text in its middle, `title` shown when pointed at
- "path": d (SVG path data), style: many rectangles as one mark, or a curve
- "text": x, y (its middle), text, size, align ("left", "center", "right"), bold, style
- "dot": x, y, r, style
- "grid": cells that a learner can point at (block i is `id`:i), drawn by the live widget alone: x, y, step [dx, dy],
  cell [x, y, w, h] inside a step, columns, kinds (a letter a cell), labels (how a cell of each kind is read out)
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from servelab.figures.theme import CARD, FONT, STYLES

Mark = dict[str, Any]
LEGEND_HEIGHT = 30
SWATCH = 15


@dataclass(slots=True)
class Frame:
    """A picture and what it says.

    legend: (style, label). caption: what happens in this frame; sentence: what its reader can say afterwards; alt:
    the finding for those who do not see it. data: the facts drawn (block tables, counts), for tests and readers.
    """

    kind: str
    width: int
    height: int = 0
    marks: list[Mark] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)
    caption: str = ""
    sentence: str = ""
    alt: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The frame as JSON values, for the front end."""
        names = ("kind", "width", "height", "marks", "caption", "sentence", "alt", "data")
        return {**{name: getattr(self, name) for name in names}, "legend": [list(entry) for entry in self.legend]}

    def rect(self, x: float, y: float, w: float, h: float, style: str, text: str = "", **extra: Any) -> None:
        """Draw a rectangle; `text` is cut to its width. extra: size, bold, title."""
        size = extra.get("size", 13)
        mark: Mark = {"shape": "rect", "x": _r(x), "y": _r(y), "w": _r(w), "h": _r(h), "style": style, **extra}
        if text:
            mark["text"] = fit(text, w - 4, size)
        self.marks.append(mark)

    def text(self, x: float, y: float, text: str, style: str = "ink", **extra: Any) -> None:
        """Write one line around height `y`. extra: size, align, bold."""
        defaults = {"size": 13, "align": "left", "bold": False}
        self.marks.append({"shape": "text", "x": _r(x), "y": _r(y), "text": text, "style": style, **defaults, **extra})

    def path(self, d: str, style: str, **extra: Any) -> None:
        """Draw SVG path data; an empty path draws nothing."""
        if d:
            self.marks.append({"shape": "path", "d": d, "style": style, **extra})

    def dot(self, x: float, y: float, radius: float, style: str, **extra: Any) -> None:
        """Draw a filled circle."""
        self.marks.append({"shape": "dot", "x": _r(x), "y": _r(y), "r": radius, "style": style, **extra})


def rects_path(rects: Iterable[tuple[float, float, float, float]]) -> str:
    """Path data of many rectangles ``(x, y, w, h)``: one mark draws thousands of cells."""
    return "".join(f"M{_r(x)},{_r(y)}h{_r(w)}v{_r(h)}h{_r(-w)}Z" for x, y, w, h in rects)


def line_path(points: Iterable[tuple[float, float]]) -> str:
    """Path data of straight lines through the points."""
    return "L".join(f"{_r(x)},{_r(y)}" for x, y in points).join(("M", ""))


def text_width(text: str, size: float = 13) -> float:
    """About how wide a text is, in pixels: wide for Chinese, narrow for i and l."""
    units = 0.0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            units += 1.0
        else:
            units += 0.32 if character in "iIljtf.,:;|!'()[] " else 0.85 if character in "mwMW@%" else 0.6
    return units * size


def fit(text: str, width: float, size: float = 13) -> str:
    """Cut `text` to `width` pixels, with an ellipsis; empty where not even two characters have room."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…" if text else ""


def token_label(text: str) -> str:
    """A token's text as a cell shows it: without the leading space, line breaks and spaces made visible."""
    shown = text.strip(" ").replace("\n", "⏎").replace("\t", "⇥") or ("␣" if text else "")
    return "".join(character for character in shown if character.isprintable())


def request_label(request_id: str) -> str:
    """A request's name in a sentence: "#3" for an id that is a mere number."""
    return f"#{request_id}" if request_id.isdigit() else request_id


def frame_figure(frame: Frame) -> go.Figure:
    """Draw a frame with Plotly, on a light card, its legend below."""
    figure = go.Figure()
    rows = _legend_rows(frame)
    height = frame.height + LEGEND_HEIGHT * len(rows)
    shapes: list[dict[str, Any]] = []
    texts: dict[tuple[float, str, str, bool], list[tuple[float, float, str]]] = {}
    for mark in [*frame.marks, *_legend_marks(frame, rows)]:
        _add_mark(mark, shapes, texts)
    for (size, align, color, bold), items in texts.items():
        side = {"left": "middle right", "center": "middle center", "right": "middle left"}[align]
        figure.add_scatter(
            x=[item[0] for item in items],
            y=[item[1] for item in items],
            text=[f"<b>{_escape(item[2])}</b>" if bold else _escape(item[2]) for item in items],
            mode="text",
            textposition=side,
            textfont={"size": size, "color": color, "family": FONT},
            hoverinfo="skip",
            showlegend=False,
            cliponaxis=False,
        )
    hidden = {"visible": False, "fixedrange": True}
    figure.update_layout(
        template="none",
        width=frame.width,
        height=height,
        shapes=shapes,
        paper_bgcolor=CARD,
        plot_bgcolor=CARD,
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        xaxis={**hidden, "range": [0, frame.width]},
        yaxis={**hidden, "range": [height, 0]},
        showlegend=False,
        meta={"alt": frame.alt, "sentence": frame.sentence},
    )
    return figure


def _add_mark(mark: Mark, shapes: list[dict[str, Any]], texts: dict[Any, list[tuple[float, float, str]]]) -> None:
    if mark["shape"] == "grid":
        return
    style = STYLES[mark["style"]]
    if mark["shape"] == "text":
        key = (mark["size"], mark["align"], style.ink[0], bool(mark["bold"]))
        texts.setdefault(key, []).append((mark["x"], mark["y"], mark["text"]))
        return
    line = {"color": _color(style.edge[0]), "width": style.edge_width, "dash": "3px,3px" if style.dash else "solid"}
    if style.edge[0] == "none":
        line["width"] = 0
    common = {"line": line, "fillcolor": _color(style.fill[0]), "opacity": style.opacity, "layer": "below"}
    match mark["shape"]:
        case "path":
            shapes.append({"type": "path", "path": _absolute(mark["d"]), **common})
        case "dot":
            x, y, r = mark["x"], mark["y"], mark["r"]
            shapes.append({"type": "circle", "x0": x - r, "x1": x + r, "y0": y - r, "y1": y + r, **common})
        case _:
            x, y, w, h = (mark[name] for name in "xywh")
            shapes.append({"type": "rect", "x0": x, "x1": x + w, "y0": y, "y1": y + h, **common})
            if mark.get("text"):
                key = (mark.get("size", 13), "center", style.ink[0], bool(mark.get("bold")))
                texts.setdefault(key, []).append((x + w / 2, y + h / 2, mark["text"]))


def _absolute(d: str) -> str:
    """Path data with absolute corners: Plotly knows no relative commands."""
    if "h" not in d:
        return d
    parts = []
    for piece in d.split("M")[1:]:
        corner, rest = piece.split("h", 1)
        x, y = (float(value) for value in corner.split(","))
        w, rest = rest.split("v", 1)
        x1, y1 = x + float(w), y + float(rest.split("h", 1)[0])
        parts.append(f"M{x},{y}L{x1},{y}L{x1},{y1}L{x},{y1}Z")
    return "".join(parts)


def _legend_rows(frame: Frame) -> list[list[tuple[float, str, str]]]:
    """The legend in rows of ``(x, style, label)`` that fit the width."""
    rows: list[list[tuple[float, str, str]]] = []
    x = float(frame.width)
    for style, label in frame.legend:
        width = SWATCH + 8 + text_width(label) + 22
        if x + width > frame.width - 8 or not rows:
            rows.append([])
            x = 16
        rows[-1].append((x, style, label))
        x += width
    return rows


def _legend_marks(frame: Frame, rows: list[list[tuple[float, str, str]]]) -> list[Mark]:
    drawing = Frame("legend", frame.width)
    for number, row in enumerate(rows):
        y = frame.height + LEGEND_HEIGHT * (number + 0.5) - 4
        for x, style, label in row:
            drawing.rect(x, y - SWATCH / 2, SWATCH, SWATCH, style)
            drawing.text(x + SWATCH + 6, y, label)
    right, bottom = frame.width - 1, frame.height + LEGEND_HEIGHT * len(rows) - 1
    drawing.path(line_path([(1, 1), (right, 1), (right, bottom), (1, bottom), (1, 1)]), "card")
    return drawing.marks


def _color(name: str) -> str:
    return "rgba(0,0,0,0)" if name == "none" else name


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _r(value: float) -> float:
    """Half pixels are fine enough, and short in JSON."""
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded
