"""`resources`: what a launch would take of a GPU that is not there, from the compiler: registers, shared memory, stack.

A launcher is called with CPU tensors and believes itself on the target; its launches are compiled instead of run.
Registers times threads bound how many programs a processor holds at once; shared memory does too, and has a limit that
a program must not pass; stack means that registers did not suffice and numbers were put into memory ("spilled").
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from servelab.kernels.inspect.process import Worker, shared
from servelab.kernels.launch import Launch, redirected

# Shared memory that one program may have, in bytes, by compute capability: the T4 (sm_75), A100 (sm_80), RTX 40 and L4
# (sm_89), H100 (sm_90), B200 (sm_100) and RTX 50 (sm_120).
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities
SHARED_LIMIT_BYTES = {75: 65536, 80: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program of a compiled kernel takes. registers: of each thread; threads: of the program.

    shared_bytes: shared memory; stack_bytes: of each thread, 0 where nothing was spilled.
    """

    kernel: str
    target: int
    threads: int
    registers: int
    shared_bytes: int
    stack_bytes: int

    @property
    def fits(self) -> bool:
        return self.shared_bytes <= SHARED_LIMIT_BYTES[self.target]


def resources(
    operator: Callable[..., Any], *args: Any, target: int, worker: Worker | None = None, **kwargs: Any
) -> list[Resources]:
    """Compile every launch of ``operator(*args, **kwargs)`` for `target`, such as 90 for sm_90, in a child process.

    args: CPU tensors, of any small size. A result is not computed. worker: the process, by default one that all calls
    share. Raises ValueError for a target that is not in the table, RuntimeError where there is no Triton for this
    system, and what the compiler raises.
    """
    if target not in SHARED_LIMIT_BYTES:
        raise ValueError(f"expected a target in {tuple(SHARED_LIMIT_BYTES)}, got {target}")
    return (worker or shared("compile")).call(_compiled, operator, args, kwargs, target)  # type: ignore[no-any-return]


def _compiled(operator: Callable[..., Any], args: Any, kwargs: Any, target: int) -> list[Resources]:
    """In the child process."""
    from servelab.kernels.language import HAS_TRITON, IS_INTERPRETED

    if not HAS_TRITON or IS_INTERPRETED:
        raise RuntimeError("expected a system that Triton compiles on (Linux, x86-64 or arm64), got none here")
    launches: list[Launch] = []
    with redirected(launches.append, target):
        operator(*args, **kwargs)
    return [compile_launch(launch, target) for launch in launches]


def compile_launch(launch: Launch, target: int) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    signature, attributes = {}, {}
    constants = {name: value for name, value in launch.options.items() if name in names}
    for place, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        if isinstance(value, int) and value == 1:  # Triton compiles a 1 in
            constants[name] = 1
            continue
        signature[name] = _type(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    options = {name: value for name, value in launch.options.items() if name not in names}
    source = ASTSource(
        launch.kernel, signature={name: signature[name] for name in names}, constexprs=constants, attrs=attributes
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    registers, stack = _usage(compiled.asm["cubin"])
    return Resources(
        kernel=launch.kernel.fn.__name__.removeprefix("_"),
        target=target,
        threads=32 * compiled.metadata.num_warps,
        registers=registers,
        shared_bytes=compiled.metadata.shared,
        stack_bytes=stack,
    )


def _type(value: object) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"expected a tensor or a number as a kernel's argument, got {type(value).__name__}")


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack a thread, as NVIDIA's cuobjdump reads them from the machine code."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    if found is None:
        raise RuntimeError(f"expected REG and STACK from cuobjdump, got {said[-300:]!r}")
    return int(found[1]), int(found[2])
