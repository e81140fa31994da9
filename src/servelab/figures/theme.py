"""The course's colours and the card that every figure stands on.

Colours are Okabe and Ito's, which colour-blind readers can tell apart ("Color Universal Design", 2008). A figure is
an opaque light card, so that it reads on light and on dark pages; live widgets follow JupyterLab's theme with the
second colour of each style. Both take the colours from here.
"""

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
YELLOW, ORANGE, RED = "#F0E442", "#E69F00", "#D55E00"
DEEP_GREEN, DEEP_RED = "#007A59", "#BF5400"  # the same hues, dark enough for white text
PURPLE, BLACK = "#CC79A7", "#1B1F24"
DEEP_PURPLE, PALE_PURPLE = "#A2437C", "#EBCFDF"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY)
CARD, CARD_EDGE, GRID = "#FCFBF8", "#DAD7CF", "#E6E3DC"
INK, MUTED = "#1B1F24", "#59606A"
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
MIN_TEXT = 12


@dataclass(frozen=True, slots=True)
class Style:
    """How one kind of mark looks: (light, dark) colours of its fill, its edge and the text on it."""

    fill: tuple[str, str] = ("none", "none")
    edge: tuple[str, str] = ("none", "none")
    ink: tuple[str, str] = (INK, "#F1F3F5")
    edge_width: float = 1
    dash: bool = False
    opacity: float = 1


STYLES: dict[str, Style] = {
    "ink": Style(),
    "muted": Style(ink=(MUTED, "#A9B1BA")),
    "card": Style(edge=(CARD_EDGE, "#3A4047")),
    "paper": Style(fill=(CARD, "#1E2226"), edge=(CARD_EDGE, "#3A4047")),
    "prompt": Style((BLUE, "#1B76B5"), (CARD, "#15181B"), ("#FFFFFF", "#FFFFFF")),
    "output": Style((DEEP_GREEN, "#17A67F"), (CARD, "#15181B"), ("#FFFFFF", "#08110D")),
    "new": Style((YELLOW, YELLOW), (BLACK, "#FFFFFF"), (BLACK, BLACK), 2),
    "next": Style(("#FFFBD0", "#3B3920"), ("#A08F00", YELLOW), (INK, "#F1F3F5"), 2, True),
    "empty": Style(("#FFFFFF", "#14171A"), ("#8A929B", "#78818B"), (MUTED, "#A9B1BA"), 1, True),
    "other": Style(("#DDDCD8", "#3C434B"), (CARD, "#15181B"), (MUTED, "#A9B1BA")),
    "free": Style(("#F3F2EE", "#1C2024"), ("#C9C6BE", "#434A52"), (MUTED, "#A9B1BA")),
    "used": Style((BLUE, "#1B76B5"), (CARD, "#15181B"), ("#FFFFFF", "#FFFFFF")),
    "reserved": Style(("#A9D8F3", "#7CC4EC"), (CARD, "#15181B"), (INK, "#0B1014")),
    "internal": Style((ORANGE, ORANGE), (CARD, "#15181B"), (INK, "#0B1014")),
    "external": Style((DEEP_RED, "#E8752A"), (CARD, "#15181B"), ("#FFFFFF", "#1A0B02")),
    "cached": Style((PALE_PURPLE, "#5C3A4E"), (DEEP_PURPLE, "#C98AAC"), (INK, "#F1F3F5"), 1, True),
    "weights": Style((BLUE, "#1B76B5"), ("none", "none"), ("#FFFFFF", "#FFFFFF")),
    "kv": Style((ORANGE, ORANGE), ("none", "none"), (INK, "#0B1014")),
    "over": Style((DEEP_RED, "#E8752A"), ("none", "none"), ("#FFFFFF", "#1A0B02")),
    "entry": Style((CARD, "#23282D"), (INK, "#C9D1D9"), (INK, "#F1F3F5"), 1.5),
    "entry-shared": Style((CARD, "#23282D"), (DEEP_PURPLE, "#E79AC6"), (INK, "#F1F3F5"), 3),
    "entry-new": Style((YELLOW, YELLOW), (BLACK, "#FFFFFF"), (BLACK, BLACK), 2),
    "link": Style(edge=("#8A929B", "#8A939D"), edge_width=1.2, opacity=0.75),
    "link-new": Style(edge=(RED, YELLOW), edge_width=2.5),
    "outline": Style(edge=(INK, "#F1F3F5"), edge_width=1.5),
    "shared": Style(edge=(DEEP_PURPLE, "#E79AC6"), edge_width=3),
    "copy": Style(edge=(DEEP_PURPLE, "#E79AC6"), edge_width=2.5),
    "copy-head": Style((DEEP_PURPLE, "#E79AC6")),
    "grid": Style(edge=(GRID, "#343A41"), edge_width=1),
    "axis": Style(edge=(MUTED, "#A9B1BA"), edge_width=1.2),
    "roof": Style(edge=(BLUE, "#56B4E9"), edge_width=3),
    "roof-other": Style(edge=("#9AA3AD", "#6F7882"), edge_width=2, dash=True),
    "mark": Style(edge=(RED, "#F08A45"), edge_width=2, dash=True),
    "point": Style((RED, "#F08A45"), (CARD, "#15181B"), edge_width=2),
    "point-other": Style((CARD, "#1E2226"), (RED, "#F08A45"), edge_width=2),
}


def card(
    figure: go.Figure, *, width: int = 860, height: int = 420, title: str = "", sentence: str = "", alt: str = ""
) -> go.Figure:
    """Give a Plotly figure the course's card, fonts and axes, and return it.

    sentence: what its reader can say afterwards; alt: the finding for those who do not see it (default: the sentence).
    Both travel in ``layout.meta``, where `show` and `reveal` find them.
    """
    if sentence or alt:
        figure.update_layout(meta={"sentence": sentence, "alt": alt or sentence})
    figure.update_layout(
        template="none",
        width=width,
        height=height,
        title={
            "text": title,
            "x": 0.02,
            "xanchor": "left",
            "y": 0.97,
            "yanchor": "top",
            "font": {"size": 17, "color": INK},
        }
        if title
        else None,
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor=CARD,
        plot_bgcolor=CARD,
        colorway=list(SERIES),
        margin={"l": 84, "r": 28, "t": 56 if title else 28, "b": 60},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 13}},
        hoverlabel={"font": {"family": FONT, "size": 13}},
    )
    axis: dict[str, Any] = {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": MUTED,
        "ticks": "outside",
        "tickcolor": MUTED,
        "tickfont": {"size": MIN_TEXT + 1},
        "title": {"font": {"size": 14}, "standoff": 8},
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def ink_on(fill: str) -> str:
    """White or ink: the one that stands out more on a fill "#RRGGBB" (WCAG 2's contrast)."""
    light, dark = luminance("#FFFFFF"), luminance(INK)
    own = luminance(fill)
    return "#FFFFFF" if (light + 0.05) / (own + 0.05) > (own + 0.05) / (dark + 0.05) else INK


def luminance(colour: str) -> float:
    """Relative luminance of "#RRGGBB", 0 to 1."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
