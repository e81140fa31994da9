"""Interactive pictures over traces and calculations. Each has `static_figure()`, `sentence` and `alt`."""

from servelab.widgets.calculator import KVCalculatorWidget
from servelab.widgets.memory_map import MemoryMapWidget
from servelab.widgets.page_table import PageTableWidget

__all__ = ["KVCalculatorWidget", "MemoryMapWidget", "PageTableWidget"]
