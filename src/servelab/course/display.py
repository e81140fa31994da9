"""Puts things into a cell's output: a widget with words for readers without a kernel, HTML, or a picture."""

from collections.abc import Mapping
from html import escape
from typing import Any

_TEXT = "color:var(--jp-content-font-color1,#1f2328)"
_MUTED = "color:color-mix(in srgb,var(--jp-content-font-color1,#1f2328) 74%,transparent)"
_BOX = (
    "box-sizing:border-box;max-width:46rem;margin:4px 0;padding:12px 18px;border-radius:6px;"
    "border:1px solid var(--jp-border-color2,#d0d7de);border-left:4px solid {accent};"
    f"background:var(--jp-layout-color1,#ffffff);{_TEXT};line-height:1.55"
)
_ACCENT = {"question": "#1565c0", "result": "#2e7d32", "plain": "#8c959f"}
WIDGET = "application/vnd.jupyter.widget-view+json"


def publish(bundle: Mapping[str, Any]) -> None:
    """Show one bundle of representations as one output."""
    from IPython.display import display

    display(dict(bundle), raw=True)  # type: ignore[no-untyped-call]


def widget_bundle(widget: Any, words: str) -> dict[str, Any]:
    """Return the bundle of a widget; `words` stand in where no widget can be shown."""
    return {WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}, "text/plain": words}


def show_widget(widget: Any, words: str) -> None:
    """Show a widget."""
    publish(widget_bundle(widget, words))


def show_html(html: str, words: str) -> None:
    """Show HTML; `words` is its plain text."""
    publish({"text/html": html, "text/plain": words})


def box(eyebrow: str, body: str, tone: str = "question") -> str:
    """Return a card as HTML with its own style, readable on a light and on a dark page."""
    head = f'<div style="{_MUTED};font-size:12px;font-weight:600">{escape(eyebrow)}</div>' if eyebrow else ""
    return f'<div style="{_BOX.format(accent=_ACCENT[tone])}">{head}{body}</div>'


def details(summary: str, body: str, is_open: bool = False) -> str:
    """Return a part that folds; `summary` is HTML."""
    state = " open" if is_open else ""
    return f'<details{state}><summary style="cursor:pointer;font-weight:600">{summary}</summary>{body}</details>'
