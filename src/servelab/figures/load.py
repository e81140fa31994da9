"""`load_curves` and `load_memory`: what a load measured against concurrency, and a server's memory against time."""

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from servelab.figures.curve import log_ticks
from servelab.figures.theme import BLUE, GREEN, MUTED, ORANGE, PURPLE, RED, card
from servelab.trace.load import LoadPoint, LoadReport, Quantiles
from servelab.translation import _

GAP = 0.07  # between panels, as a share of the height
HEIGHT = 230  # of a panel, pixels


def load_curves(
    report: LoadReport, *, title: str = "", width: int = 860, sentence: str = "", alt: str = ""
) -> go.Figure:
    """Draw throughput, latencies and, where a service level was asked for, goodput against the requests in flight.

    In flight are as many as were asked for, or, where a rate was, as many as were measured.

    sentence, alt: see `theme.card`; by default the finding in numbers. Raises ValueError without a completed request.
    """
    points = [point for point in report.points if point.completed]
    if not points:
        raise ValueError("expected at least one level with a completed request, got none")
    asked = all(point.streams is not None for point in points)
    points.sort(key=lambda point: in_flight(point, asked))
    x = [in_flight(point, asked) for point in points]
    rows = 3 if report.service_level.asks else 2
    figure = make_subplots(rows, 1, shared_xaxes=True, vertical_spacing=GAP)
    draw(figure, 1, x, [point.output_tokens_per_s for point in points], _("output tokens a second"), GREEN, "circle")
    lines: list[tuple[str, str, str, str, Callable[[LoadPoint], float | None]]] = [
        (_("TTFT, median"), BLUE, "solid", "circle", lambda point: ms(point.ttft_ms, "p50")),
        (_("TTFT, p95"), BLUE, "dash", "circle-open", lambda point: ms(point.ttft_ms, "p95")),
        (_("TPOT, median"), ORANGE, "solid", "diamond", lambda point: ms(point.tpot_ms, "p50")),
        (_("TPOT, p95"), ORANGE, "dash", "diamond-open", lambda point: ms(point.tpot_ms, "p95")),
    ]
    values: list[float] = []
    for name, color, dash, marker, read in lines:
        series = [read(point) for point in points]
        values += [value for value in series if value]
        draw(figure, 2, x, series, name, color, marker, dash)
    if rows == 3:
        shares = [None if point.goodput_share is None else 100 * point.goodput_share for point in points]
        draw(figure, 3, x, shares, _("within the service level"), PURPLE, "square")
    words = sentence or curve_sentence(points, x)
    card(figure, width=width, height=110 + HEIGHT * rows, title=title, sentence=words, alt=alt or words)
    figure.update_layout(margin_t=124 if title else 80)
    figure.update_yaxes(title_text=_("tokens / s"), rangemode="tozero", row=1, col=1)
    level = report.service_level
    for limit, name, color in ((level.ttft_ms, _("TTFT limit"), BLUE), (level.tpot_ms, _("TPOT limit"), ORANGE)):
        if limit is not None:
            figure.add_hline(limit, line={"color": color, "width": 1.5, "dash": "dot"}, row=2, col=1)
            place = {"x": 0.005, "xref": "x2 domain", "xanchor": "left", "yref": "y2", "yanchor": "bottom"}
            # Plotly wants an annotation's place on a logarithmic axis as the logarithm.
            figure.add_annotation(y=math.log10(limit), text=name, showarrow=False, font={"size": 12}, **place)
            values.append(limit)
    ticks = log_ticks(values)
    names = [f"{tick:,g}" for tick in ticks]
    span = [math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.15]
    figure.update_yaxes(title_text=_("ms"), type="log", range=span, tickvals=ticks, ticktext=names, row=2, col=1)
    if rows == 3:
        figure.update_yaxes(title_text=_("% of requests"), range=[0, 105], row=3, col=1)
    figure.update_xaxes(tickvals=x, ticktext=[f"{value:,.3g}" for value in x], type="log")
    figure.update_xaxes(title_text=_("requests in flight"), row=rows, col=1)
    return figure


def load_memory(
    report: LoadReport, *, title: str = "", width: int = 860, sentence: str = "", alt: str = ""
) -> go.Figure:
    """Draw the share of the KV cache in use, and the requests that run and wait, against time; each level is named.

    sentence, alt: see `theme.card`; by default the finding in numbers. Raises ValueError without samples.
    """
    samples = report.samples
    if not samples:
        raise ValueError("expected samples of /metrics, got none: the server that was loaded has no such page")
    x = [sample.t_s for sample in samples]
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=GAP)
    usage = [100 * sample.kv_usage for sample in samples]
    running, waiting = [sample.running for sample in samples], [sample.waiting for sample in samples]
    fill = {"fill": "tozeroy", "fillcolor": "rgba(230,159,0,0.25)"}
    lines: tuple[tuple[int, Sequence[float], str, dict[str, object], dict[str, str]], ...] = (
        (1, usage, _("KV cache in use"), stroke(ORANGE, width=2), fill),
        (2, running, _("running"), stroke(BLUE, shape="hv", width=2), {}),
        (2, waiting, _("waiting"), stroke(RED, "dash", "hv", width=2), {}),
    )
    for row, y, name, line, more in lines:
        figure.add_scatter(x=x, y=y, name=name, mode="lines", line=line, row=row, col=1, **more)
    words = sentence or memory_sentence(report)
    card(figure, width=width, height=120 + HEIGHT * 2, title=title, sentence=words, alt=alt or words)
    figure.update_layout(margin_t=120 if title else 80)
    figure.update_layout(legend_y=1.08)
    for number, point in enumerate(report.points):
        shade = {"fillcolor": MUTED, "opacity": 0.10 if number % 2 else 0.05, "line_width": 0, "layer": "below"}
        figure.add_vrect(point.start_s, point.end_s, row="all", col=1, **shade)
        figure.add_annotation(
            x=(point.start_s + point.end_s) / 2,
            y=1,
            yref="y domain",
            yanchor="bottom",
            text=level_name(point),
            showarrow=False,
            font={"size": 12, "color": MUTED},
        )
    top = max(usage)
    figure.update_yaxes(title_text=_("% of the KV cache"), range=[0, max(1.0, 1.1 * top)], row=1, col=1)
    figure.update_yaxes(title_text=_("requests"), rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text=_("seconds since the load began"), row=2, col=1)
    return figure


def in_flight(point: LoadPoint, asked: bool) -> float:
    return float(point.streams) if asked and point.streams is not None else point.concurrency


def level_name(point: LoadPoint) -> str:
    return point.label if point.streams is None else _("{streams} in flight").format(streams=point.streams)


def ms(quantiles: Quantiles | None, name: str) -> float | None:
    return None if quantiles is None else float(getattr(quantiles, name))


def stroke(color: str, dash: str = "solid", shape: str = "linear", width: float = 3) -> dict[str, object]:
    return {"color": color, "width": width, "dash": dash, "shape": shape}


def draw(
    figure: go.Figure,
    row: int,
    x: Sequence[float],
    y: Sequence[float | None],
    name: str,
    color: str,
    marker: str,
    dash: str = "solid",
) -> None:
    """One series of one panel."""
    figure.add_scatter(
        x=list(x),
        y=list(y),
        name=name,
        mode="lines+markers",
        line=stroke(color, dash),
        marker={"symbol": marker, "size": 9, "color": color},
        row=row,
        col=1,
    )


def curve_sentence(points: Sequence[LoadPoint], x: Sequence[float]) -> str:
    """The finding in numbers, from the fewest requests in flight to the most."""
    first, last = points[0], points[-1]
    before, after = ms(first.tpot_ms, "p50"), ms(last.tpot_ms, "p50")
    if len(points) == 1 or before is None or after is None:
        return _("With {x:.3g} in flight the server writes {rate:,.0f} tokens a second.").format(
            x=x[-1], rate=last.output_tokens_per_s
        )
    return _(
        "From {low:.3g} to {high:.3g} requests in flight the server writes {slow:,.0f} and then {fast:,.0f} tokens a "
        "second, and the median time between two tokens of a request goes from {before:.0f} to {after:.0f} ms."
    ).format(
        low=x[0], high=x[-1], slow=first.output_tokens_per_s, fast=last.output_tokens_per_s, before=before, after=after
    )


def memory_sentence(report: LoadReport) -> str:
    top = max(report.samples, key=lambda sample: sample.kv_usage)
    return _(
        "At most {usage:.1f} % of the KV cache is in use, by {running} requests that run; at most {waiting} wait."
    ).format(usage=100 * top.kv_usage, running=top.running, waiting=max(sample.waiting for sample in report.samples))
