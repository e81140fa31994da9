"""tools/guidellm.py: which commands make GuideLLM's environment, when they run again, what is said when they fail."""

import sys
from collections import namedtuple
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def guidellm(load_tool):
    return load_tool("guidellm")


@pytest.fixture
def root(guidellm, make_root):
    return make_root("guidellm", guidellm.GuideLLMEnvironment)


def test_it_is_made_once_from_pinned_versions(guidellm, root, capsys):
    assert guidellm.main(root.path) == 0
    made, torch, install, imports = root.calls
    assert made == ["venv", ".venv-guidellm"]
    assert torch[-1] == "torch==2.13.0+cpu"
    assert "--no-deps" in torch
    assert install[-3:] == ["-c", str(root.path / "tools" / "guidellm.txt"), "guidellm==0.8.1"]
    assert "import guidellm" in imports[-1]
    assert "GuideLLM is ready in .venv-guidellm" in capsys.readouterr().out
    root.calls.clear()
    assert guidellm.main(root.path) == 0
    assert root.calls == []


def test_a_changed_pin_installs_again(guidellm, root):
    guidellm.main(root.path)
    root.calls.clear()
    pins = root.path / "tools" / "guidellm.txt"
    pins.write_text(pins.read_text().replace("guidellm==0.8.1", "guidellm==0.9.0"))
    guidellm.main(root.path)
    assert "guidellm==0.9.0" in [call[-1] for call in root.calls]
    assert "venv" not in root.calls[0]


def test_a_failure_is_one_sentence(guidellm, root, monkeypatch, capsys):
    real = sys.modules["lab"].Environment.call

    def call(self, command, failure):
        if "guidellm==0.8.1" in command:
            real(self, [sys.executable, "-c", "raise SystemExit('NameResolutionError')"], failure)
        elif "venv" in command:
            self.python.parent.mkdir(parents=True)
            self.python.symlink_to(sys.executable)

    monkeypatch.setattr(guidellm.GuideLLMEnvironment, "call", call)
    assert guidellm.main(root.path) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith("The package registry cannot be reached")
    assert line.endswith("run `make guidellm` again.")


def test_a_small_disk_is_told_first(guidellm, root, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sys.modules["lab"].shutil, "disk_usage", lambda path: usage(10**10, 9 * 10**9, 10**9))
    assert guidellm.main(root.path) == 1
    assert "1.0 GB free): free 3 GB" in capsys.readouterr().err
    assert root.calls == []


def test_an_interruption_says_how_to_go_on(guidellm, root, monkeypatch, capsys):
    def interrupt(self, command, failure):
        raise KeyboardInterrupt

    monkeypatch.setattr(guidellm.GuideLLMEnvironment, "call", interrupt)
    assert guidellm.main(root.path) == 130
    assert capsys.readouterr().err.strip() == "Stopped: run `make guidellm` to go on."
