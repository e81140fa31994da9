"""`bars`: parts of a whole as stacked horizontal bars, one a row, for example the kinds of waste of two pools."""

from collections.abc import Mapping

import plotly.graph_objects as go

from servelab.figures.theme import SERIES, STYLES, card, ink_on


def bars(
    rows: Mapping[str, Mapping[str, float]],
    *,
    x_title: str,
    title: str = "",
    styles: Mapping[str, str] | None = None,
    percent: bool = False,
    width: int = 860,
    sentence: str = "",
    alt: str = "",
) -> go.Figure:
    """Draw one stacked bar a row: row name -> {part: value}.

    styles: part -> name of a style of the memory map ("used", "reserved", "internal", "external", "free"; default:
    the part's own name where it is one). percent: each row is scaled to 100.
    """
    figure = go.Figure()
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    totals = {name: sum(row.values()) or 1.0 for name, row in rows.items()}
    widest = 100.0 if percent else max(totals.values(), default=1.0)
    for number, part in enumerate(parts):
        style = STYLES.get((styles or {}).get(part, part))
        series = SERIES[number % len(SERIES)]
        fill, ink = (style.fill[0], style.ink[0]) if style else (series, ink_on(series))
        values = [row.get(part, 0) * (100 / totals[name] if percent else 1) for name, row in rows.items()]
        figure.add_bar(
            y=list(rows),
            x=values,
            name=part,
            orientation="h",
            marker={"color": fill, "line": {"color": "#8A929B", "width": 0.5}},
            text=[_label(value, widest, percent) for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"size": 13, "color": ink},
        )
    card(
        figure, width=width, height=150 + 56 * len(rows) + (30 if title else 0), title=title, sentence=sentence, alt=alt
    )
    figure.update_layout(
        barmode="stack", bargap=0.35, legend_traceorder="normal", margin={"l": 20, "t": 88 if title else 48}
    )
    figure.update_xaxes(title_text=x_title, tickformat=",")
    figure.update_yaxes(autorange="reversed", automargin=True, ticks="")
    return figure


def _label(value: float, widest: float, percent: bool) -> str:
    """A part's own number, where its bar has room for it."""
    if value < 0.045 * widest:
        return ""
    return f"{value:.0f} %" if percent else f"{value:,.0f}"
