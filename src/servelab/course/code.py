"""Shows code where it lives: imported from `src`, highlighted, with its file and line."""

import ast
import inspect
import textwrap
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import servelab

_COLOURS = (
    ("Token.Comment", "var(--jp-mirror-editor-comment-color,#5a6a6a)"),
    ("Token.Literal.String", "var(--jp-mirror-editor-string-color,#9a2a2a)"),
    ("Token.Literal.Number", "var(--jp-mirror-editor-number-color,#006644)"),
    ("Token.Keyword.Constant", "var(--jp-mirror-editor-builtin-color,#006644)"),
    ("Token.Keyword", "var(--jp-mirror-editor-keyword-color,#006b2d)"),
    ("Token.Operator.Word", "var(--jp-mirror-editor-keyword-color,#006b2d)"),
    ("Token.Name.Function", "var(--jp-mirror-editor-def-color,#0033aa)"),
    ("Token.Name.Class", "var(--jp-mirror-editor-def-color,#0033aa)"),
)


def source(*things: Any, docstring: bool = True) -> None:
    """Show functions, methods or classes of ours as they stand in `src`, with path and line.

    `docstring=False` leaves docstrings out. ValueError when something is not servelab's Python code.
    """
    from servelab.course.display import show_html

    for thing in things:
        text, place = source_text(thing, docstring)
        show_html(code_html(text, place), f"# {place}\n{text}")


def source_text(thing: Any, docstring: bool = True) -> tuple[str, str]:
    """Return the code, not indented, and where it stands: "src/servelab/cache/manager.py:41"."""
    thing = thing.fget if isinstance(thing, property) else thing
    thing = thing.func if isinstance(thing, cached_property) else inspect.unwrap(thing)
    try:
        lines, first = inspect.getsourcelines(thing)
        file = Path(inspect.getsourcefile(thing) or "").resolve()
        place = file.relative_to(Path(servelab.__file__).resolve().parent)
    except (TypeError, OSError, ValueError):
        raise ValueError(f"expected a function, method or class of servelab, got {thing!r}") from None
    text = textwrap.dedent("".join(lines)).rstrip()
    return text if docstring else _without_docstrings(text), f"src/servelab/{place.as_posix()}:{max(first, 1)}"


def _without_docstrings(text: str) -> str:
    lines = text.splitlines()
    drop: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None and len(node.body) > 1:
            first = node.body[0].lineno
            last = node.body[0].end_lineno or first
            while last < len(lines) and not lines[last].strip():
                last += 1
            drop |= set(range(first, last + 1))
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in drop)


def code_html(text: str, place: str) -> str:
    """Return highlighted code with its place above it; colours follow JupyterLab's theme where there is one."""
    from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

    parts = []
    for kind, value in PythonLexer(stripnl=False).get_tokens(text):
        name = str(kind)
        colour = next((colour for start, colour in _COLOURS if name.startswith(start)), "")
        parts.append(f'<span style="color:{colour}">{escape(value)}</span>' if colour else escape(value))
    frame = (
        "margin:4px 0;border:1px solid var(--jp-border-color2,#d0d7de);border-radius:6px;overflow:hidden;"
        "background:var(--jp-cell-editor-background,#f7f8fa);color:var(--jp-mirror-editor-variable-color,#1f2328)"
    )
    head = (
        "padding:4px 12px;font-size:12px;border-bottom:1px solid var(--jp-border-color2,#d0d7de);"
        "color:var(--jp-content-font-color2,#57606a);font-family:var(--jp-code-font-family,monospace)"
    )
    body = (
        "margin:0;padding:8px 12px;overflow-x:auto;background:transparent;color:inherit;"
        "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);line-height:1.45"
    )
    code = "".join(parts).rstrip("\n")
    return (
        f'<div style="{frame}"><div style="{head}">{escape(place)}</div>'
        f'<pre tabindex="0" style="{body}"><code style="background:transparent;color:inherit">{code}</code></pre></div>'
    )
