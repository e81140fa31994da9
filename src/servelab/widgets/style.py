"""What the front end loads: the plain scripts of ``static/`` one after the other, and the colours of the figures."""

from pathlib import Path

from servelab.figures.theme import STYLES, Style

STATIC = Path(__file__).parent / "static"
DARK = ('body[data-jp-theme-light="false"] .servelab', "body.vscode-dark .servelab")


def script(*names: str) -> str:
    """The named files of ``static/`` as one ES module; only the last one exports."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def css() -> str:
    """``static/widget.css``, and a rule for each style of the figures: light first, then dark."""
    rules = [(STATIC / "widget.css").read_text(encoding="utf-8")]
    for name, style in STYLES.items():
        rules.append(_rule(".servelab", name, style, 0))
        rules += [_rule(selector, name, style, 1) for selector in DARK]
    return "\n".join(rules)


def _rule(scope: str, name: str, style: Style, theme: int) -> str:
    dash = "stroke-dasharray:3 3;" if style.dash else ""
    shape = (
        f"{scope} .sl-{name}{{fill:{style.fill[theme]};stroke:{style.edge[theme]};"
        f"stroke-width:{style.edge_width}px;opacity:{style.opacity};{dash}}}"
    )
    swatch = f"{scope} .sl-swatch.sl-{name}{{background:{style.fill[theme]};border-color:{style.edge[theme]};}}"
    return f"{shape}\n{scope} .sl-t-{name}{{fill:{style.ink[theme]};}}\n{swatch.replace('none', 'transparent')}"
