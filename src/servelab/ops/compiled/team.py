"""Run a compiled kernel on all threads of torch's own OpenMP team.

numba's `prange` would bring a second team of threads, and two teams that both spin on the same cores slow each other
down; besides, where numba finds no OpenMP its threads may not be used from two Python threads at once. So a kernel is
one C function that every thread of the team enters, and that takes work from a counter until there is none left.
"""

import ctypes
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from servelab.ops.compiled.kernel import Kernel

MAPPED_LIBRARIES = Path("/proc/self/maps")


class NoTeam(RuntimeError):
    """torch's OpenMP runtime was not found in this process."""


@functools.cache
def openmp() -> ctypes.CDLL:
    """The OpenMP library that torch has loaded. Raises NoTeam where there is none that offers what GCC calls."""
    try:
        lines = MAPPED_LIBRARIES.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NoTeam(f"expected {MAPPED_LIBRARIES}, got {error}") from None
    paths = {line.split(maxsplit=5)[-1] for line in lines if re.search(r"/lib(gomp|iomp5|omp)[^/]*\.so", line)}
    for path in sorted(paths, key=lambda path: "torch" not in path):  # torch's own first
        library = ctypes.CDLL(path)
        if hasattr(library, "GOMP_parallel"):
            library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
            return library
    raise NoTeam(f"expected OpenMP with GOMP_parallel in this process, got {sorted(paths)}")


def run(kernel: "Kernel", arguments: ctypes.Array[ctypes.c_int64] | ctypes.Structure, threads: int) -> None:
    """Let `threads` threads enter a kernel with the same arguments; return when all have left."""
    if threads == 1:
        kernel.enter(ctypes.byref(arguments))
    else:
        openmp().GOMP_parallel(kernel.address, ctypes.byref(arguments), threads, 0)


@functools.cache
def barrier() -> int:
    """The address of the function at which a thread of the team waits for all others."""
    return ctypes.cast(openmp().GOMP_barrier, ctypes.c_void_p).value or 0


def pack(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Arguments for a kernel: integers and addresses."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def threads_for(work: int, least: int) -> int:
    """Torch's number of threads where there is enough work for a second one, else 1."""
    return torch.get_num_threads() if work >= least else 1
