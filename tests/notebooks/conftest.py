"""The notebook tools, loaded from `notebooks/` under names that no other room's tools have, and a small chapter."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = Path(__file__).parent / "sample" / "01_sample.py"


def load(name: str) -> ModuleType:
    path = ROOT / "notebooks" / f"{name}.py"
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # `build` imports `form` by this name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def form() -> ModuleType:
    return load("form")


@pytest.fixture(scope="session")
def build() -> Iterator[ModuleType]:
    load("form")
    module = load("build")
    yield module
    for name in ("build", "form"):
        sys.modules.pop(name, None)


@pytest.fixture
def sample_source() -> str:
    """A chapter in form, in which small stand-ins speak instead of the course's own cells."""
    return SAMPLE.read_text(encoding="utf-8")


@pytest.fixture
def make_source(tmp_path: Path):
    """Write a source as `tmp_path/notebooks/source/01_sample.py` and return its path."""

    def make(text: str, name: str = "01_sample") -> Path:
        path = tmp_path / "notebooks" / "source" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return make
