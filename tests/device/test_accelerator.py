"""best_device and best_dtype choose what the hardware computes fast, and never import torch before they are called."""

import subprocess
import sys

import pytest
import torch

from servelab.device import accelerator, best_device, best_dtype
from servelab.device.accelerator import cpu_flags


def test_device_is_one_torch_accepts():
    assert torch.zeros(1, device=best_device()).item() == 0


@pytest.mark.parametrize(
    ("mkldnn", "flags", "expected"),
    [
        (True, {"avx2", "avx512_bf16"}, torch.bfloat16),
        (True, {"avx2", "amx_bf16"}, torch.bfloat16),
        (True, {"avx2", "avx512f"}, torch.float32),
        (False, {"avx512_bf16"}, torch.float32),
    ],
)
def test_cpu_takes_bfloat16_only_in_hardware(monkeypatch, mkldnn, flags, expected):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn)
    monkeypatch.setattr(accelerator, "cpu_flags", lambda: frozenset(flags))
    assert best_dtype("cpu") is expected


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)]
)
def test_gpu_takes_bfloat16_from_ampere(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert best_dtype("cuda") is expected
    assert best_dtype("cuda:1") is expected


def test_unknown_device_is_named():
    with pytest.raises(ValueError, match=r'expected device "cpu" or "cuda", got \'mps\''):
        best_dtype("mps")


def test_flags_are_read_from_the_first_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2\nprocessor : 1\nflags\t\t: other\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2"}


def test_flags_are_empty_where_the_system_has_no_list(tmp_path):
    assert cpu_flags(tmp_path / "missing") == frozenset()


def test_importing_the_room_leaves_torch_alone():
    code = "import sys, servelab.device; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
