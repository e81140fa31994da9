"""`observe_kernel`: watch a kernel that was written in a notebook, without a GPU and without a crash."""

import inspect
import tempfile
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servelab.kernels.inspect.observe import Observation, observe
from servelab.kernels.inspect.process import Worker

PLAIN = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Source:
    """A function as text, and the line that it begins at in the file or cell it came from."""

    name: str
    text: str
    line: int


def observe_kernel(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, worker: Worker | None = None, **options: Any
) -> Observation:
    """Run ``kernel[grid](*arguments, **options)`` in Triton's interpreter, in a child process, on CPU tensors.

    kernel: a function with `@triton.jit`, of a notebook or a file. It may use other such functions of its own, and
    numbers, defined beside it. Tensors that it writes to are written.
    What would be wrong on a GPU is in ``record.faults``: an address outside of every tensor (which is not followed: a
    load there gives 0), two programs that store to one address.

    Raises ValueError for a grid or a kernel that is none, RuntimeError where there is no Triton for this system, and
    what the interpreter raises, with the kernel's own line.
    """
    if not isinstance(grid, tuple) or not 1 <= len(grid) <= 3 or not all(type(n) is int and n >= 1 for n in grid):
        raise ValueError(f"expected grid as a tuple of one to three positive integers, got {grid!r}")
    sources: dict[str, Source] = {}
    constants: dict[str, Any] = {}
    name = _collect(kernel, sources, constants)
    return observe(_run, list(sources.values()), constants, name, grid, arguments, options, worker=worker)


def _collect(kernel: Any, sources: dict[str, Source], constants: dict[str, Any]) -> str:
    """Add the kernel, the functions that it calls and the numbers that it names; returns its name."""
    function = getattr(kernel, "fn", kernel)
    if not isinstance(function, types.FunctionType):
        raise ValueError(f"expected a function with @triton.jit, got {type(kernel).__name__}")
    if function.__name__ in sources:
        return function.__name__
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise ValueError(f"expected a kernel whose text can be read, got {function.__name__}: {error}") from None
    sources[function.__name__] = Source(function.__name__, textwrap.dedent("".join(lines)), max(1, first))
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(value, PLAIN):
            constants[name] = value
        elif isinstance(getattr(value, "fn", value), types.FunctionType):
            _collect(value, sources, constants)
    return function.__name__


def _run(
    sources: list[Source],
    constants: dict[str, Any],
    name: str,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """In the child process: each function in a file of its own, at the line where it stands in the notebook."""
    from servelab.kernels.language import tl, triton
    from servelab.kernels.launch import launch

    folder = Path(tempfile.mkdtemp(prefix="servelab-kernel-"))
    namespace: dict[str, Any] = {"tl": tl, "triton": triton, "__name__": "kernel"}
    namespace |= {key: tl.constexpr(value) for key, value in constants.items()}
    for source in sources:
        path = folder / f"{source.name}.py"
        text = "\n" * (source.line - 1) + source.text
        path.write_text(text, encoding="utf-8")
        exec(compile(text, str(path), "exec"), namespace)
    device = next((value.device for value in arguments if hasattr(value, "device")), None)
    if device is None:
        raise ValueError("expected at least one tensor among the kernel's arguments, got none")
    launch(namespace[name], grid, device, *arguments, **options)
