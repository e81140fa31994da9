"""Pictures: pure functions from a trace or numbers to a `Frame` (drawn live by a widget) or a Plotly figure."""

from servelab.figures.bars import bars
from servelab.figures.calculator import calculator_figure, calculator_frame
from servelab.figures.curve import curve
from servelab.figures.frame import Frame, frame_figure
from servelab.figures.kernel_access import kernel_access
from servelab.figures.kv_growth import kv_growth
from servelab.figures.load import load_curves, load_memory
from servelab.figures.memory_map import memory_map_figure, memory_map_frame
from servelab.figures.page_table import free_blocks, page_table_figure, page_table_frame
from servelab.figures.roofline import roofline
from servelab.figures.theme import card

__all__ = [
    "Frame",
    "bars",
    "calculator_figure",
    "calculator_frame",
    "card",
    "curve",
    "frame_figure",
    "free_blocks",
    "kernel_access",
    "kv_growth",
    "load_curves",
    "load_memory",
    "memory_map_figure",
    "memory_map_frame",
    "page_table_figure",
    "page_table_frame",
    "roofline",
]
