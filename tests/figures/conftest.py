"""The traces of `hand_trace.py`, as fixtures of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hand_trace import hand_trace, holes_contiguous, holes_paged, large_trace, shared_trace

__all__ = ["hand_trace", "holes_contiguous", "holes_paged", "large_trace", "shared_trace"]
