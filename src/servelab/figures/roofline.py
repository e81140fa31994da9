"""`roofline`: the ceilings of one or more machines, and where measured or calculated work stands below them."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from servelab.costs import Roofline
from servelab.figures.curve import DASHES, MARKERS
from servelab.figures.theme import CARD, RED, SERIES, card
from servelab.translation import _


def roofline(
    machines: Sequence[Roofline],
    points: Mapping[str, tuple[float, float]] | None = None,
    *,
    title: str = "",
    width: int = 860,
    height: int = 460,
    sentence: str = "",
    alt: str = "",
) -> go.Figure:
    """Draw log-log rooflines. points: name -> (FLOPs per byte, FLOP/s reached).

    Raises ValueError without a machine, or for a point that is not positive.
    """
    if not machines:
        raise ValueError("expected at least one machine, got none")
    figure = go.Figure()
    intensities = [point[0] for point in (points or {}).values()]
    if any(value <= 0 for point in (points or {}).values() for value in point):
        raise ValueError(f"expected positive points, got {points}")
    low = min([0.25, *[value / 2 for value in intensities]])
    high = max([8 * machine.ridge_point for machine in machines] + [2 * value for value in intensities])
    for number, machine in enumerate(machines):
        ridge = machine.ridge_point
        x = [low, ridge, high]
        name = _("{machine}: ridge at {ridge:.0f} FLOPs per byte").format(machine=machine.name, ridge=ridge)
        figure.add_scatter(
            x=x,
            y=[machine.attainable_flops_per_s(value) for value in x],
            name=name,
            mode="lines",
            line={"color": SERIES[number % len(SERIES)], "width": 3, "dash": DASHES[number % len(DASHES)]},
        )
    for number, (name, (intensity, flops)) in enumerate((points or {}).items()):
        figure.add_scatter(
            x=[intensity],
            y=[flops],
            name=name,
            mode="markers+text",
            text=[name],
            textposition="bottom right" if intensity < (low * high) ** 0.5 else "bottom left",
            textfont={"size": 13},
            marker={
                "size": 12,
                "symbol": MARKERS[number % len(MARKERS)],
                "color": RED,
                "line": {"color": CARD, "width": 2},
            },
            showlegend=False,
            cliponaxis=False,
        )
    card(figure, width=width, height=height, title=title, sentence=sentence, alt=alt)
    figure.update_layout(
        legend_orientation="v", margin={"t": 72 + 22 * len(machines) if title else 30 + 22 * len(machines)}
    )
    exponents = {"type": "log", "exponentformat": "SI extended", "dtick": 1, "minor": {"showgrid": False}}
    figure.update_xaxes(title_text=_("FLOPs per byte moved"), **exponents)
    figure.update_yaxes(title_text=_("FLOP/s"), **exponents)
    return figure
