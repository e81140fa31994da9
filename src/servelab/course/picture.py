"""Shows a figure or a widget with its sentence; in the solved edition as a picture with alternative text."""

import base64
import inspect
import struct
import zlib
from html import escape
from typing import Any

from servelab.course.markup import block, inline
from servelab.course.record import solved_edition
from servelab.translation import _

PLOTLY = "application/vnd.plotly.v1+json"


def show(thing: Any, sentence: str | None = None, alt: str | None = None, picture: Any = None) -> None:
    """Show a Plotly figure or a widget of ours (or text, as Markdown) with the sentence its reader can say afterwards.

    A function without arguments that makes one will do too. picture: what is saved in the solved edition instead, where
    `thing` waits for its reader.
    `sentence` and `alt` default to the widget's own. In the solved edition the output is one picture (`image/png`,
    and `text/html` with the picture, `alt` and the sentence), so that GitHub, a PDF and a reader without a kernel
    see it. ValueError when a figure has no alternative text there, or when `thing` cannot be shown.
    """
    from servelab.course.display import publish, show_html, widget_bundle

    thing = made(thing if picture is None or not solved_edition() else picture)
    words, description = _texts(thing, sentence, alt)
    if isinstance(thing, str):
        show_html(block(thing), thing)
    elif solved_edition() and (_is_figure(thing) or hasattr(thing, "static_figure")):
        publish(_picture(thing if _is_figure(thing) else thing.static_figure(), words, description))
    elif _is_figure(thing):
        publish(_figure_bundle(thing, description))
        if words or description:
            show_html(_caption(words, description), words)
    elif hasattr(thing, "model_id"):
        publish(widget_bundle(thing, description or words))
        if words and words != getattr(thing, "sentence", None):
            show_html(_caption(words, ""), words)
    else:
        from IPython.display import display

        display(thing)  # type: ignore[no-untyped-call]


def live_children(thing: Any) -> list[Any]:
    """Return widgets that show `thing` inside a fold."""
    from ipywidgets import HTML, Output

    thing = made(thing)
    words, description = _texts(thing, None, None)
    if hasattr(thing, "model_id"):
        return [thing]
    if isinstance(thing, str):
        return [HTML(f'<div class="servelab-caption">{block(thing)}</div>')]
    output = Output()
    if _is_figure(thing):
        bundle = _figure_bundle(thing, description)
        output.outputs = ({"output_type": "display_data", "data": bundle, "metadata": {}},)
        return [output, HTML(_caption(words, description))] if words or description else [output]
    output.append_display_data(thing)
    return [output]


def made(thing: Any) -> Any:
    """Return what is to be shown; a function that makes it is called."""
    return thing() if inspect.isfunction(thing) or inspect.ismethod(thing) else thing


def _is_figure(thing: Any) -> bool:
    return hasattr(thing, "to_plotly_json") and not hasattr(thing, "model_id")


def _texts(thing: Any, sentence: str | None, alt: str | None) -> tuple[str, str]:
    """The sentence and the alternative text; a figure may carry its own in `layout.meta`."""
    own: dict[str, Any] = {}
    if _is_figure(thing) and isinstance(thing.layout.meta, dict):
        own = thing.layout.meta
    words = sentence if sentence is not None else own.get("sentence", getattr(thing, "sentence", "")) or ""
    description = alt if alt is not None else own.get("alt", getattr(thing, "alt", "")) or words
    return str(words), str(description)


def _figure_bundle(figure: Any, description: str) -> dict[str, Any]:
    import json

    data = json.loads(figure.to_json())
    layout = data["layout"]
    if layout.get("xaxis", {}).get("visible", True):  # a chart fits any page; a drawing in pixels keeps its size
        layout.pop("width", None)
        layout["autosize"] = True
    data["config"] = {"displaylogo": False, "responsive": True}
    return {PLOTLY: data, "text/plain": description or _("A figure.")}


def _picture(figure: Any, words: str, description: str) -> dict[str, Any]:
    if not description:
        raise ValueError("expected alt or a sentence for a figure in the solved edition, got neither")
    png = recompressed(figure.to_image(format="png", scale=1.5))
    encoded = base64.b64encode(png).decode("ascii")
    caption = f"<figcaption>{inline(words)}</figcaption>" if words else ""
    size = f'width="{figure.layout.width}" ' if figure.layout.width else ""
    picture = f'<img alt="{escape(description)}" {size}style="max-width:100%" src="data:image/png;base64,{encoded}">'
    return {
        "image/png": encoded,
        "text/html": f'<figure style="margin:0">{picture}{caption}</figure>',
        "text/plain": description,
    }


def recompressed(png: bytes) -> bytes:
    """Return the same picture in fewer bytes: a browser compresses for speed, a notebook is kept for long.

    Pixels, size and filters stay; only the compressed data is packed again, as tightly as zlib can.
    """
    chunks, position, packed = [], 8, b""
    while position < len(png):
        (length,) = struct.unpack_from(">I", png, position)
        kind, data = png[position + 4 : position + 8], png[position + 8 : position + 8 + length]
        position += length + 12
        if kind == b"IDAT":
            packed += data
            continue
        if kind == b"IEND":
            chunks.append((b"IDAT", zlib.compress(zlib.decompress(packed), 9)))
        chunks.append((kind, data))
    parts = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return png[:8] + b"".join(parts)


def _caption(words: str, description: str) -> str:
    hidden = ""
    if description and description != words:
        style = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
        hidden = f'<span class="servelab-hidden" style="{style}">{escape(description)}</span>'
    return f'<p class="servelab-caption" style="max-width:46rem">{hidden}{inline(words)}</p>'
