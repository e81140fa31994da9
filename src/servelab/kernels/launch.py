"""How a launcher runs its kernel, and how others look on: one function that every launch passes through."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from servelab.kernels.language import HAS_TRITON, IS_INTERPRETED

# Of a thread, what the hardware has. Named (`maxnreg`) where a kernel would spill without: left to itself the assembler
# aims at a count that lets one more program onto a processor, and puts on the stack what it then lacks.
MAX_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `kernel`, its `grid` (programs along up to 3 axes), its arguments by position, and by name the
    compile-time constants and options (num_warps, num_stages)."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[object, ...]
    options: dict[str, object]


_receiver: ContextVar[Callable[[Launch], None] | None] = ContextVar("receiver", default=None)
_capability: ContextVar[int | None] = ContextVar("capability", default=None)


@contextlib.contextmanager
def redirected(receiver: Callable[[Launch], None], capability: int | None = None) -> Iterator[None]:
    """Within the block launches go to `receiver` and compute nothing, on any device.

    capability: what launchers are to take the GPU for, such as 90; None for the one that is there.
    """
    tokens = _receiver.set(receiver), _capability.set(capability)
    try:
        yield
    finally:
        _receiver.reset(tokens[0])
        _capability.reset(tokens[1])


def can_launch(x: Tensor) -> bool:
    """Whether kernels run on this tensor: it is on a GPU and Triton is installed, or the interpreter is on."""
    if _receiver.get() is not None:
        return True
    return HAS_TRITON and (x.is_cuda or IS_INTERPRETED)


def launch(kernel: Any, grid: tuple[int, ...], device: torch.device, *arguments: object, **options: object) -> None:
    """Run `kernel` on `device` in ``prod(grid)`` programs; no program, no launch."""
    if 0 in grid:
        return
    receiver = _receiver.get()
    if receiver is not None:
        receiver(Launch(kernel, grid, arguments, options))
        return
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](*arguments, **options)


def capability(device: torch.device) -> int:
    """Of a GPU, its compute capability, such as 90 for 9.0; 0 on a CPU, where the interpreter runs."""
    assumed = _capability.get()
    if assumed is not None:
        return assumed
    return _capability_of(device) if device.type == "cuda" else 0


@functools.cache
def _capability_of(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n; Triton's tiles have such sides."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(n: int, m: int) -> int:
    return -(-n // m)
