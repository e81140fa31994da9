"""The doctor names what is wrong and the fix, on healthy machines and on broken ones, and never fails itself."""

import importlib.metadata
import io
import os
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from servelab.device import doctor
from servelab.device.doctor import Line


def only(lines):
    (line,) = lines
    return line


def printed(lines):
    console = Console(file=io.StringIO(), width=200)
    console.print(doctor.table(lines))
    return console.file.getvalue()


@pytest.fixture
def cuda_torch(monkeypatch):
    """A torch built for CUDA, on a machine whose driver lists one GPU."""
    fake = SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: False,
            get_device_properties=lambda index: SimpleNamespace(
                name="NVIDIA H100 80GB HBM3", total_memory=80 * 2**30, major=9, minor=0
            ),
        ),
        version=SimpleNamespace(cuda="13.0"),
    )
    monkeypatch.setattr(doctor, "_import", lambda name: (fake, ""))
    monkeypatch.setattr(doctor, "_gpus_of_the_driver", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_this_machine_has_no_problem_and_every_part_has_a_line():
    lines = doctor.report()
    assert [line for line in lines if line.status == "problem"] == []
    names = {line.name for line in lines}
    assert names >= {"Python", "torch", "triton", "GPU", "processor", "bfloat16", "model", "disk", *doctor.SERVED}


def test_every_complaint_has_a_fix():
    for line in doctor.report():
        assert (line.status == "ok") == (line.fix == "")


def test_a_check_that_fails_is_a_line_among_the_others(monkeypatch):
    def fail():
        raise OSError("the disk has gone")

    monkeypatch.setattr(doctor, "CHECKS", (("disk", fail), ("Python", doctor._python)))
    disk, python = doctor.report()
    assert (disk.status, disk.text) == ("problem", "OSError: the disk has gone")
    assert python.status == "ok"


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10), "problem"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "problem")]
)
def test_python_versions(monkeypatch, version, status):
    monkeypatch.setattr(doctor.sys, "version_info", (*version, 1))
    assert only(doctor._python()).status == status


@pytest.mark.parametrize(
    "broken",
    [
        "raise OSError('libtorch_cpu.so: cannot open shared object file')",
        "raise ImportError('no module named torch._C')",
        "import sys; sys.nothing_of_this_name",
    ],
)
def test_a_broken_torch_is_reported_and_the_rest_goes_on(tmp_path, broken):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(broken)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    command = [sys.executable, "-c", "from servelab.cli import main; main()", "doctor"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert answer.returncode == 1, answer.stderr
    assert "Traceback" not in answer.stderr
    (torch_row,) = [row for row in answer.stdout.splitlines() if row.startswith("torch")]
    assert "problem" in torch_row
    assert "does not load" in torch_row
    assert "make lab" in answer.stdout
    for name in ("GPU", "processor", "jupyterlab", "disk"):
        assert any(row.startswith(name) for row in answer.stdout.splitlines())


def test_an_old_torch_is_a_problem(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "2.4.0")
    line = only(doctor._torch())
    assert line.status == "problem"
    assert line.text.endswith(f"the course needs {doctor._lower_bounds()['torch']} or newer")


def test_a_missing_package_is_a_problem(monkeypatch):
    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    lines = list(doctor._notebooks())
    assert [line.status for line in lines] == ["problem"] * len(doctor.SERVED)


def test_triton_missing_on_linux_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "_import", lambda name: (None, "ModuleNotFoundError: No module named 'triton'"))
    assert only(doctor._triton()).status == "warning"


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_triton_is_not_missed_where_it_does_not_exist(monkeypatch, system):
    monkeypatch.setattr(doctor.platform, "system", lambda: system)
    line = only(doctor._triton())
    assert line.status == "ok"
    assert "recorded results" in line.text


def test_no_driver_is_no_complaint(cuda_torch, monkeypatch):
    monkeypatch.setattr(doctor, "_gpus_of_the_driver", lambda: "")
    line = only(doctor._gpu())
    assert line.status == "ok"
    assert line.text.startswith("no NVIDIA driver found")


def test_a_cpu_build_leaves_the_gpu_unused(cuda_torch):
    cuda_torch.version.cuda = None
    line = only(doctor._gpu())
    assert (line.status, line.fix) == ("warning", "Run `make lab TORCH=gpu`.")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu(cuda_torch, monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert "hidden by CUDA_VISIBLE_DEVICES" in only(doctor._gpu()).text


def test_a_driver_that_is_too_old(cuda_torch):
    line = only(doctor._gpu())
    assert "does not serve CUDA 13.0" in line.text
    assert "Update the NVIDIA driver" in line.fix


def test_a_gpu_with_torch_broken(cuda_torch, monkeypatch):
    monkeypatch.setattr(doctor, "_import", lambda name: (None, "OSError"))
    assert only(doctor._gpu()).text == "NVIDIA H100 80GB HBM3, unused: torch does not load"


def test_a_working_gpu_and_what_launching_takes(cuda_torch, monkeypatch, tmp_path):
    cuda_torch.cuda.is_available = lambda: True
    monkeypatch.setattr(doctor.shutil, "which", lambda program: "/usr/bin/gcc" if program == "gcc" else None)
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.delenv("CC", raising=False)
    gpu, compiler, headers = doctor._gpu()
    assert gpu == Line("GPU", "ok", "NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0")
    assert compiler.text == "/usr/bin/gcc"
    assert headers.status == "problem"
    assert "-dev" in headers.fix
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor.shutil, "which", lambda program: None)
    _gpu, compiler, headers = doctor._gpu()
    assert compiler.status == "problem"
    assert headers.status == "ok"


def test_a_gpu_too_old_for_triton(cuda_torch, monkeypatch):
    cuda_torch.cuda.is_available = lambda: True
    properties = SimpleNamespace(name="Tesla V100", total_memory=16 * 2**30, major=7, minor=0)
    cuda_torch.cuda.get_device_properties = lambda index: properties
    assert next(doctor._gpu()).status == "warning"


def test_what_the_driver_lists(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda program: "/usr/bin/nvidia-smi")
    answer = SimpleNamespace(returncode=0, stdout="NVIDIA L4\nNVIDIA L4\n")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *a, **k: answer)
    assert doctor._gpus_of_the_driver() == "NVIDIA L4, NVIDIA L4"
    answer.returncode = 9
    assert doctor._gpus_of_the_driver() == ""


def test_the_format_follows_the_speed(monkeypatch):
    speeds = {torch.float32: 4e11, torch.bfloat16: 8e11}
    monkeypatch.setattr("servelab.device.ceiling.measured_bandwidth", lambda device: 40e9)
    monkeypatch.setattr("servelab.device.ceiling.measured_matmul_flops", lambda dtype, device: speeds[dtype])
    monkeypatch.setattr("servelab.device.accelerator.has_fast_bfloat16", lambda: True)
    processor, half = doctor._processor()
    assert processor.text.endswith("reads 40 GB/s, float32 400 GFLOP/s")
    assert half.text == "800 GFLOP/s, 2 times the speed of float32: the course computes in bfloat16"


def test_the_model_is_missing_and_then_ready(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVELAB_CACHE", str(tmp_path))
    assert only(doctor._model_cache()).status == "warning"
    folder = tmp_path / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 3_000_000)
    assert only(doctor._model_cache()).status == "warning", "a folder without its manifest is not whole"
    (folder / "servelab.json").write_text("{}")
    line = only(doctor._model_cache())
    assert line.status == "ok"
    assert "smollm2-135m (3 MB)" in line.text


@pytest.mark.parametrize(("free", "status"), [(10**8, "problem"), (10**9, "warning"), (10**11, "ok")])
def test_free_disk(monkeypatch, tmp_path, free, status):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setenv("SERVELAB_CACHE", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: usage(free, 0, free))
    assert only(doctor._disk()).status == status


def test_the_table_shows_text_and_fix_as_they_are():
    shown = printed([Line("model", "warning", "in [cache]", "`make lab` fetches [it].")])
    assert "in [cache]" in shown
    assert "-> `make lab` fetches [it]." in shown


def test_a_notebook_gets_html_and_plain_text():
    bundle = doctor.table([Line("Python", "ok", "3.11.7")])._repr_mimebundle_(include=[], exclude=[])
    assert "3.11.7" in bundle["text/plain"]
    assert "3.11.7" in bundle["text/html"]


def test_paths_do_not_name_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.Path, "home", lambda: tmp_path)
    assert doctor._at_home(tmp_path / "cache" / "servelab") == "~/cache/servelab"
