"""`curve`: measured series as lines with a label at their end."""

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from servelab.figures.theme import MUTED, SERIES, card

MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def curve(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    x_title: str,
    y_title: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    marks: Mapping[str, float] | None = None,
    width: int = 860,
    height: int = 420,
    sentence: str = "",
    alt: str = "",
) -> go.Figure:
    """Draw each series over `x` as a line, told apart by colour, dash and marker, its name at its end.

    marks: name -> x of a vertical line, for example a crossover.
    sentence, alt: see `theme.card`. Raises ValueError when lengths differ.
    """
    figure = go.Figure()
    for number, (name, values) in enumerate(series.items()):
        if len(values) != len(x):
            raise ValueError(f"expected {len(x)} values for {name!r}, got {len(values)}")
        color = SERIES[number % len(SERIES)]
        figure.add_scatter(
            x=list(x),
            y=list(values),
            name=name,
            mode="lines+markers",
            line={"color": color, "width": 3, "dash": DASHES[number % len(DASHES)]},
            marker={"symbol": MARKERS[number % len(MARKERS)], "size": 8, "color": color},
        )
    card(figure, width=width, height=height, title=title, sentence=sentence, alt=alt)
    figure.update_layout(margin_t=88 if title else 48)
    figure.update_xaxes(title_text=x_title, type="log" if log_x else "linear")
    figure.update_yaxes(title_text=y_title, type="log" if log_y else "linear")
    if log_x and len(x) <= 12:  # the values that were measured, instead of Plotly's 2, 5, 10
        figure.update_xaxes(tickvals=list(x), ticktext=[f"{value:,}" for value in x])
    if log_y:
        ticks = log_ticks([value for values in series.values() for value in values if value > 0])
        figure.update_yaxes(tickvals=ticks, ticktext=[f"{value:,g}" for value in ticks])
    else:
        figure.update_yaxes(rangemode="tozero")
    for name, position in (marks or {}).items():
        figure.add_vline(
            x=position,
            line={"color": MUTED, "width": 2, "dash": "dot"},
            annotation={"text": name, "font": {"size": 13}, "bgcolor": "rgba(252,251,248,0.9)"},
            annotation_position="top left",
        )
    return figure


def log_ticks(values: Sequence[float]) -> list[float]:
    """Round values for a logarithmic axis, all written alike: 1, 2, 5, 10, ...; over 2.5 decades 1, 10, 100 alone."""
    low, high = min(values), max(values)
    steps = (1, 2, 5) if high < 10**2.5 * low else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**exponent for exponent in exponents for step in steps]
