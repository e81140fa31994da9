"""How long a launch takes on a GPU, and what the GPU could do at best."""

import statistics
import time
from collections.abc import Callable

import torch

FLUSH_BYTES = 512 << 20  # more than the level-2 cache of any GPU: what was read before has left it
WARM_UP = 3


class Clock:
    """Times functions on a device. budget_s: of one measurement, all repetitions together; at least 5 are made."""

    def __init__(self, device: torch.device, budget_s: float = 0.25) -> None:
        self.device, self.budget_s = device, budget_s
        self._flush = torch.empty(FLUSH_BYTES if device.type == "cuda" else 1, dtype=torch.uint8, device=device)

    def samples(self, work: Callable[[], object]) -> tuple[float, ...]:
        """Seconds of each repetition, from a cold cache."""
        if self.device.type != "cuda":  # a dry run: that it runs is all that is asked
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start,)
        for _ in range(WARM_UP):
            work()
        one = statistics.median(self._timed(work) for _ in range(3))
        count = max(5, min(100, int(self.budget_s / max(one, 1e-6))))
        return tuple(self._timed(work) for _ in range(count))

    def _timed(self, work: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def copy_bandwidth(clock: Clock) -> float:
    """Bytes a second that are read and written, both counted, by a copy that no cache can hold."""
    size = 1 << 30 if clock.device.type == "cuda" else 1 << 20
    source = torch.ones(size, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    return 2 * size / min(clock.samples(lambda: target.copy_(source)))


def matmul_flops(clock: Clock, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large square product."""
    size = 8192 if clock.device.type == "cuda" else 64
    left = torch.ones(size, size, dtype=dtype, device=clock.device)
    return 2 * size**3 / min(clock.samples(lambda: left @ left))
