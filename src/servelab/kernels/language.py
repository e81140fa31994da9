"""Triton's two names, `triton` and `tl`; where no kernel can run, stand-ins that let every kernel be imported and read.

Triton runs on Linux with NVIDIA GPUs. Its interpreter (TRITON_INTERPRET=1, before the first import) computes a kernel
on the CPU, program after program. On a machine with neither it is not imported: it takes 70 MB and a second.
`SERVELAB_TRITON=always` imports it all the same, as the processes of `servelab.kernels.inspect` do to compile.
"""

import importlib
import os
from typing import Any

import torch

VARIABLE = "SERVELAB_TRITON"


class _Absent:
    """Decorates and annotates kernels like Triton; `launch.can_launch` keeps them from being launched."""

    @staticmethod
    def jit(function: Any) -> Any:
        return function

    @staticmethod
    def constexpr(value: Any) -> Any:
        return value


def _is_wanted() -> bool:
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in ("auto", "always"):
        raise ValueError(f"expected {VARIABLE} as auto or always, got {choice!r}")
    return choice == "always" or os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available()


def _modules() -> tuple[Any, Any]:
    if _is_wanted():
        try:
            return importlib.import_module("triton"), importlib.import_module("triton.language")
        except ImportError:  # no wheel for this system
            pass
    return _Absent, _Absent


triton, tl = _modules()
HAS_TRITON = triton is not _Absent


@triton.jit
def _probe():
    """What Triton makes of a kernel here."""


# Whether the kernels of this process are run by Triton's interpreter.
IS_INTERPRETED = HAS_TRITON and type(_probe).__name__ == "InterpretedFunction"


def _mend_index() -> None:
    """Let the interpreter of Triton 3.6 count a loop with numpy 2.4, which makes no integer of an array `[3]`."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched


if IS_INTERPRETED and triton.__version__.startswith("3.6."):
    _mend_index()
