"""Compile a kernel once a machine: the machine code is kept beside the prepared models and found again."""

import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba import cfunc, types

from servelab.device import cache_folder

ARGUMENTS = types.CPointer(types.int64)
LOCK = threading.Lock()


class Kernel:
    """A C function ``void kernel(int64 *arguments)`` that a team of threads enters. Compiled when it is first used.

    function: in Python, for numba.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    @functools.cached_property
    def address(self) -> int:
        return int(self.compiled.address)

    @property
    def is_kept(self) -> bool:
        """Whether its machine code is at hand, so that it need not be compiled."""
        return any(kept_folder().rglob(f"*.{self.function.__name__}-*.nbc"))

    @functools.cached_property
    def enter(self) -> Callable[[object], None]:
        """Call it on this thread alone, with a ctypes structure or array."""
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)

    @functools.cached_property
    def compiled(self) -> Any:
        # numba looks for what it kept by the function's own file; these kernels are made of several.
        with LOCK:
            before = numba.config.CACHE_DIR
            numba.config.CACHE_DIR = str(kept_folder())
            try:
                return cfunc(types.void(ARGUMENTS), nopython=True, cache=True, fastmath=FAST_MATH, error_model="numpy")(
                    self.function
                )
            finally:
                numba.config.CACHE_DIR = before


# A product and a sum may be rounded once together. Sums keep their order (`exp2` relies on it), and NaN stays NaN:
# a stray read must show.
FAST_MATH = {"contract", "nsz"}
# For a function that only adds up: in any order that the compiler likes, always the same one.
ANY_ORDER = {*FAST_MATH, "reassoc"}


def kept_folder() -> Path:
    """Where the machine code of these very sources, compiled by this numba, is kept."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return cache_folder() / "compiled" / digest.hexdigest()[:16]


def has_vectors() -> bool:
    """Whether this processor has the instructions that the kernels are written for: AVX2 with FMA, or ARM's NEON."""
    features = llvmlite.binding.get_host_cpu_features()
    if llvmlite.binding.get_process_triple().startswith(("aarch64", "arm64")):
        return True
    return all(features.get(name, False) for name in ("avx2", "fma", "f16c"))
