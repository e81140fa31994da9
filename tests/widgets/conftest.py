"""Widgets are tested on the traces of the figures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "figures"))

from hand_trace import hand_trace, holes_contiguous, holes_paged, large_trace, shared_trace

__all__ = ["hand_trace", "holes_contiguous", "holes_paged", "large_trace", "shared_trace"]
