"""`kv_growth`: how the KV cache of several models grows with the tokens stored, against their weights."""

from collections.abc import Sequence

import plotly.graph_objects as go

from servelab.costs import ModelSpec, kv_cache_bytes_per_token, kv_weight_crossover_tokens, weight_bytes
from servelab.figures.curve import DASHES
from servelab.figures.theme import CARD, INK, SERIES, card
from servelab.translation import _


def kv_growth(
    models: Sequence[ModelSpec],
    *,
    max_tokens: int = 1_000_000,
    bytes_per_element: float = 2,
    bytes_per_parameter: float = 2,
    title: str = "",
    width: int = 860,
    height: int = 460,
    sentence: str = "",
    alt: str = "",
) -> go.Figure:
    """Draw KV bytes over tokens (all requests together) for each model, with a dot where they equal its weights.

    Raises ValueError without a model.
    """
    if not models:
        raise ValueError("expected at least one model, got none")
    figure = go.Figure()
    crossovers = [kv_weight_crossover_tokens(model, bytes_per_element, bytes_per_parameter) for model in models]
    start = min([*crossovers, max_tokens]) / 8
    tokens = [start * (max_tokens / start) ** (point / 30) for point in range(31)]
    for number, model in enumerate(models):
        color = SERIES[number % len(SERIES)]
        per_token = kv_cache_bytes_per_token(model, bytes_per_element)
        crossover = crossovers[number]
        name = _("{model}: {bytes} bytes a token").format(model=model.name, bytes=f"{per_token:,}")
        figure.add_scatter(
            x=tokens,
            y=[per_token * count for count in tokens],
            name=name,
            mode="lines",
            line={"color": color, "width": 3, "dash": DASHES[number % len(DASHES)]},
        )
        if crossover <= max_tokens:
            figure.add_scatter(
                x=[crossover],
                y=[weight_bytes(model, bytes_per_parameter)],
                mode="markers+text",
                text=[f"{crossover:,}"],
                textposition="top left",
                textfont={"size": 13, "color": INK},
                marker={"size": 13, "color": color, "line": {"color": CARD, "width": 2}},
                hovertemplate=_("{model}: KV weighs as much as the weights").format(model=model.name),
                showlegend=False,
            )
    card(figure, width=width, height=height + 22 * len(models), title=title, sentence=sentence, alt=alt)
    figure.update_layout(legend={"orientation": "v", "y": -0.22, "yanchor": "top"}, margin={"b": 90 + 24 * len(models)})
    figure.update_xaxes(title_text=_("tokens stored, all requests together"), type="log", exponentformat="SI", dtick=1)
    figure.update_yaxes(
        title_text=_("KV cache, bytes"), type="log", exponentformat="SI extended", dtick=1, ticksuffix="B"
    )
    return figure
