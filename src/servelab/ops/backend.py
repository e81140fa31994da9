"""Which code computes on a CPU: kernels compiled by numba where this machine can run them, else PyTorch alone.

`SERVELAB_CPU_BACKEND` chooses: "auto" (the default), "compiled" (an error where it cannot be) or "plain" (PyTorch).
Both give the same numbers up to float32 rounding.
"""

import functools
import os
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from servelab.ops.compiled.team import NoTeam, openmp

if TYPE_CHECKING:
    from servelab.ops.compiled.kernel import Kernel

BACKENDS = ("auto", "compiled", "plain")
VARIABLE = "SERVELAB_CPU_BACKEND"

# Read once; tests set it. Linear layers keep what they were packed for.
choice = os.environ.get(VARIABLE, "auto")


def use_compiled() -> bool:
    """Whether CPU operators run compiled kernels. Raises ValueError for a choice that there is not."""
    if choice == "auto":
        return cannot_compile() is None
    if choice not in BACKENDS:
        raise ValueError(f"expected {VARIABLE} in {BACKENDS}, got {choice!r}")
    if choice == "compiled" and cannot_compile() is not None:
        raise ValueError(
            f"expected a machine that runs compiled kernels ({VARIABLE}={choice}), got: {cannot_compile()}"
        )
    return choice == "compiled"


def computes(x: Tensor) -> bool:
    """Whether compiled kernels compute with this tensor: float32 on a CPU, and no gradient is recorded."""
    recorded = x.requires_grad and torch.is_grad_enabled()
    return x.is_cpu and x.dtype == torch.float32 and not recorded and use_compiled()


def kernels_of_a_step() -> "list[Kernel]":
    """The compiled kernels that every step runs; none where PyTorch computes."""
    if not use_compiled():
        return []
    from servelab.ops.compiled import forward, linear, pointwise

    return [forward.PASS, linear.MULTIPLY, pointwise.NORMALISE]


@functools.cache
def cannot_compile() -> str | None:
    """Why this machine runs no compiled kernels; None where it does: found out by compiling and running one."""
    try:
        from servelab.ops.compiled.kernel import has_vectors

        if not has_vectors():
            return "the processor has neither AVX2 with FMA nor NEON"
        openmp()
    except (ImportError, NoTeam) as error:
        return str(error)
    try:
        from servelab.ops.compiled.pointwise import rms_norm

        one = torch.ones(1, 16)
        if not torch.equal(rms_norm(one, one[0], 0.0), one):
            return "a compiled kernel computes wrong numbers"
    except Exception as error:  # a compiler can fail in any way, and PyTorch alone still works
        warnings.warn(f"kernels cannot be compiled here, PyTorch computes instead: {error}", stacklevel=2)
        return f"a kernel cannot be compiled: {error}"
    return None
