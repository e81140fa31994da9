"""Which device and which number format the course computes with.

Torch is imported inside the functions: `servelab doctor` has to run where torch is missing or broken.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FAST_BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")


def best_device() -> str:
    """Return `"cuda"` when a GPU can be used, else `"cpu"`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def best_dtype(device: str | None = None) -> torch.dtype:
    """Return the fastest format that keeps 16-bit models faithful on `device` (default: `best_device()`).

    A GPU computes in bfloat16 from compute capability 8.0 on and in float16 before that. A processor
    without bfloat16 instructions emulates them slowly, so there the answer is float32. Raises ValueError
    on a device that is neither `"cpu"` nor `"cuda"` (or `"cuda:1"`).
    """
    import torch

    device = best_device() if device is None else device
    kind = device.partition(":")[0]
    if kind == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    if kind == "cpu":
        return torch.bfloat16 if has_fast_bfloat16() else torch.float32
    raise ValueError(f'expected device "cpu" or "cuda", got {device!r}')


def has_fast_bfloat16() -> bool:
    """Tell whether this processor multiplies bfloat16 matrices in hardware (AVX512-BF16 or AMX)."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and any(f in cpu_flags() for f in FAST_BFLOAT16_FLAGS)


@functools.cache
def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the instruction-set flags of the processor; empty where the system does not list them."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(found, "").split())
