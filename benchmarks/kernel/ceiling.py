"""What this GPU could do at best."""

import torch

from servelab.device import Clock


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
