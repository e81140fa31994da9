"""Kernels with one fault planted in their text."""

import importlib.util
import sys
from pathlib import Path

from servelab.kernels.inspect import Observation, Worker, observe
from servelab.kernels.launch import Launch

KERNELS = Path(sys.modules[Launch.__module__].__file__).parent


def plant(folder: Path, module: str, *changes: tuple[str, str]) -> Path:
    """A copy of a kernel file with each text replaced by another; the text stands there exactly once."""
    source = (KERNELS / f"{module}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) == 1, f"expected {old!r} once in {module}, got {source.count(old)}"
        source = source.replace(old, new)
    path = folder / f"{module}_planted.py"
    path.write_text(source, encoding="utf-8")
    return path


def observe_planted(path: Path, operator: str, *args: object, worker: Worker, **kwargs: object) -> Observation:
    """As `observe`, of an operator of a file."""
    return observe(call_planted, str(path), operator, *args, worker=worker, **kwargs)


def call_planted(path: str, operator: str, *args: object, **kwargs: object) -> object:
    """In the child process."""
    name = Path(path).stem + str(abs(hash(Path(path).read_text(encoding="utf-8"))))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return getattr(sys.modules[name], operator)(*args, **kwargs)
