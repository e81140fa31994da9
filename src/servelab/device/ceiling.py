"""The two ceilings of this machine, measured in under a second each and kept for the process.

A decode step can be no faster than the weights and the cache can be read (bytes per second), and a prefill no
faster than the matrices can be multiplied (floating point operations per second).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from servelab.device.accelerator import best_device, best_dtype

if TYPE_CHECKING:
    import torch

CPU_READ_BYTES = 256 << 20  # larger than any last-level cache, so the bytes come from memory
GPU_READ_BYTES = 2 << 30
FEWEST_ROWS = 256
MOST_ROWS = 8192
LONG_ENOUGH_S = 0.02


def measured_bandwidth(device: str | None = None, *, again: bool = False) -> float:
    """Return how many bytes per second `device` (default: `best_device()`) reads from its memory.

    The best of five passes that sum a buffer too large for any cache. Measured once per process and device; `again`
    measures now, and leaves what is kept as it is.
    """
    device = best_device() if device is None else device
    return float(_bandwidth.__wrapped__(device)) if again else _bandwidth(device)


def measured_matmul_flops(dtype: torch.dtype | None = None, device: str | None = None, *, again: bool = False) -> float:
    """Return the floating point operations per second of a square matrix product on `device`.

    `dtype` defaults to `best_dtype(device)`. A product of two [N, N] matrices counts 2 N^3 operations. N doubles
    from 256 until one product takes 20 ms: large enough for the ceiling, and quick where bfloat16 is emulated.
    The best of several is taken. Measured once per process, device and dtype; `again` measures now.
    """
    device = best_device() if device is None else device
    dtype = best_dtype(device) if dtype is None else dtype
    return float(_matmul_flops.__wrapped__(dtype, device)) if again else _matmul_flops(dtype, device)


@functools.cache
def _bandwidth(device: str) -> float:
    import torch

    num_bytes = GPU_READ_BYTES if device.startswith("cuda") else CPU_READ_BYTES
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / _best_seconds(buffer.sum, device)


@functools.cache
def _matmul_flops(dtype: torch.dtype, device: str) -> float:
    import torch

    rows = FEWEST_ROWS
    while True:
        left = torch.ones(rows, rows, dtype=torch.float32, device=device).to(dtype)
        seconds = _best_seconds(partial(torch.matmul, left, left), device)
        if seconds > LONG_ENOUGH_S or rows == MOST_ROWS:
            return float(2 * rows**3 / seconds)
        rows *= 2


def _best_seconds(work: Callable[[], object], device: str, passes: int = 5, budget_s: float = 0.6) -> float:
    """Return the shortest time of `work`, after one warm-up pass, stopping early when `budget_s` is spent."""
    import torch

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    work()
    wait()
    best = float("inf")
    begin = time.perf_counter()
    for _ in range(passes):
        start = time.perf_counter()
        work()
        wait()
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop - begin > budget_s:
            break
    return best
