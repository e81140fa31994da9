"""Content text (Markdown, nothing typed in by a learner) as HTML, and numbers as a reader wants them."""

import math
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from typing import Any


@lru_cache(maxsize=1)
def _markdown() -> Any:
    import mistune

    return mistune.create_markdown(escape=True, plugins=["table"])


def block(text: str) -> str:
    """Return paragraphs, lists and tables as HTML. HTML in the text is shown, not interpreted."""
    return str(_markdown()(text)).strip()


def inline(text: str) -> str:
    """Return one paragraph's bold, emphasis and code as HTML without its `<p>`."""
    html = block(text)
    if html.startswith("<p>") and html.endswith("</p>") and html.count("<p>") == 1:
        return html[3:-4]
    return html


def number(value: float) -> str:
    """Return a number with thousands separated and at least three significant digits: 11,676, 0.00213, 2.5, 1,203."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    if not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value)))
    if not -18 <= digits <= 9:
        return f"{value:.2e}"
    if digits <= 0:
        return f"{value:,.0f}"
    return f"{round(value, digits):,.{digits}f}".rstrip("0").rstrip(".")


class _Real(float):
    """A float that a format without a specification shows as `number` does."""

    def __format__(self, specification: str) -> str:
        return format(float(self), specification) if specification else number(float(self))


class _Whole(int):
    """An int that a format without a specification shows as `number` does."""

    def __format__(self, specification: str) -> str:
        return format(int(self), specification) if specification else number(int(self))


def fill(text: str, values: Mapping[str, Any], owner: str) -> str:
    """Put `values` into the {placeholders} of `text`; ValueError names `owner` and one that is missing."""
    shown = {name: _shown(value) for name, value in values.items()}
    try:
        return text.format_map(shown)
    except KeyError as missing:
        raise ValueError(f"{owner}: its text needs {missing}; reveal was given {sorted(values)}") from None


def _shown(value: Any) -> Any:
    value = plain_number(value)
    if type(value) is int:
        return _Whole(value)
    return _Real(value) if type(value) is float else value


def is_number(value: object) -> bool:
    """Whether a value is a plain int or float (a bool is not)."""
    return type(value) in (int, float)


def plain_number(value: Any) -> Any:
    """Return numpy and torch scalars as int or float; anything else unchanged."""
    if not isinstance(value, int | float | str) and callable(getattr(value, "item", None)):
        value = value.item()
    return float(value) if isinstance(value, float) else value


def text_of(value: object) -> str:
    """Return a learner's own text, safe to put into HTML, its lines kept."""
    return escape(str(value)).replace("\n", "<br>")
