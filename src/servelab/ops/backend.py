"""Which code computes an operator: a Triton kernel, a kernel that numba compiled for the CPU, or PyTorch alone.

`SERVELAB_BACKEND` chooses: "auto" (the default) takes Triton on a GPU, compiled kernels on a CPU that can run them, and
PyTorch elsewhere; "triton", "compiled" and "plain" (PyTorch) take that one, and it is an error where it cannot be. In
Triton's interpreter (TRITON_INTERPRET=1) "auto" takes Triton on a CPU too. All give the same numbers up to rounding.
"""

import functools
import os
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from servelab.kernels.language import IS_INTERPRETED
from servelab.kernels.launch import can_launch
from servelab.ops.compiled.team import NoTeam, openmp

if TYPE_CHECKING:
    from servelab.ops.compiled.kernel import Kernel

BACKENDS = ("auto", "triton", "compiled", "plain")
VARIABLE = "SERVELAB_BACKEND"

# Read once; tests set it. Linear layers keep what they were packed for.
choice = os.environ.get(VARIABLE, "auto")


def launches(x: Tensor) -> bool:
    """Whether Triton kernels compute with this tensor: where they can, and no gradient is recorded.

    Raises ValueError for a choice that there is not, and for "triton" where it cannot run.
    """
    check_choice()
    if choice not in ("auto", "triton"):
        return False
    if choice == "triton" and not can_launch(x):
        raise ValueError(f"expected a GPU or Triton's interpreter ({VARIABLE}=triton), got a tensor on {x.device}")
    return can_launch(x) and not is_recorded(x)


def is_recorded(x: Tensor) -> bool:
    """Whether a gradient is: kernels have none."""
    return x.requires_grad and torch.is_grad_enabled()


def check_choice() -> None:
    if choice not in BACKENDS:
        raise ValueError(f"expected {VARIABLE} in {BACKENDS}, got {choice!r}")


def use_compiled() -> bool:
    """Whether CPU operators run kernels that numba compiles. Raises ValueError for a choice that there is not."""
    check_choice()
    if choice == "auto":
        return not IS_INTERPRETED and cannot_compile() is None
    if choice == "compiled" and cannot_compile() is not None:
        raise ValueError(
            f"expected a machine that runs compiled kernels ({VARIABLE}={choice}), got: {cannot_compile()}"
        )
    return choice == "compiled"


def computes(x: Tensor) -> bool:
    """Whether compiled kernels compute with this tensor: float32 on a CPU, and no gradient is recorded."""
    return x.is_cpu and x.dtype == torch.float32 and not is_recorded(x) and use_compiled()


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
