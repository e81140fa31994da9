"""The tools that make an environment beside the course's, with every command only noted."""

import importlib.util
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def load_tool(monkeypatch):
    """tools/<name>.py as a module, on a Linux without a GPU."""

    def load(name):
        monkeypatch.delenv("SERVELAB_AGAIN", raising=False)
        monkeypatch.syspath_prepend(str(TOOLS))
        spec = importlib.util.spec_from_file_location(f"{name}_tool_under_test", TOOLS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(sys.modules["pinned"].platform, "system", lambda: "Linux")
        return module

    return load


@pytest.fixture
def make_root(tmp_path, monkeypatch):
    """A course folder with the pins of a tool, in which making an environment makes its Python and nothing else."""

    def make(name, environment):
        (tmp_path / "tools").mkdir()
        shutil.copy(TOOLS / f"{name}.txt", tmp_path / "tools")
        calls = []

        def call(self, command, failure):
            calls.append([str(part) for part in command])
            if "venv" in command:
                self.python.parent.mkdir(parents=True)
                self.python.symlink_to(sys.executable)
                calls[-1] = ["venv", Path(command[-1]).name]

        monkeypatch.setattr(environment, "call", call)
        monkeypatch.setattr(environment, "has_pip", lambda self: self.python.exists())
        return namedtuple("Root", "path calls")(tmp_path, calls)

    return make
