"""How long a launch takes on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 512 << 20  # more than the level-2 cache of any GPU: what was read before has left it
WARM_UP = 3


class Clock:
    """Times functions on a device. budget_s: of one measurement, all repetitions together; at least 5 are made."""

    def __init__(self, device: torch.device | str, budget_s: float = 0.25) -> None:
        import torch

        self.device, self.budget_s = torch.device(device), budget_s
        num_bytes = FLUSH_BYTES if self.device.type == "cuda" else 1
        self._flush = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def samples(self, work: Callable[[], object]) -> tuple[float, ...]:
        """Seconds of each repetition, from a cold cache. Elsewhere than on a GPU `work` runs once."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start,)
        for _ in range(WARM_UP):
            work()
        one = statistics.median(self._timed(work) for _ in range(3))
        count = max(5, min(100, int(self.budget_s / max(one, 1e-6))))
        return tuple(self._timed(work) for _ in range(count))

    def median_ms(self, work: Callable[[], object]) -> float:
        """The median of `samples`, in milliseconds."""
        return 1e3 * statistics.median(self.samples(work))

    def _timed(self, work: Callable[[], object]) -> float:
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._flush.zero_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
