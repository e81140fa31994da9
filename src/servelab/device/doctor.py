"""What `servelab doctor` reports: one line a part of this machine, with the fix where one is needed.

Torch and everything else heavy is imported inside the checks, and a check that fails becomes a line of the report:
the doctor has to work on the machines that need one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from servelab.device.folder import cache_folder
from servelab.device.machine import processor_name
from servelab.translation import _

if TYPE_CHECKING:
    from rich.table import Table

Status = Literal["ok", "warning", "problem"]
PYTHONS = ((3, 11), (3, 13))
OLDEST_CAPABILITY = (7, 5)
SERVED = ("jupyterlab", "ipywidgets", "anywidget", "plotly", "ipykernel")
LITTLE_DISK_BYTES, NO_DISK_BYTES = 3_000_000_000, 500_000_000
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Line:
    """One finding: `name` of the part, its `status`, what was found, and how to repair it (empty when ok)."""

    name: str
    status: Status
    text: str
    fix: str = ""


def report() -> list[Line]:
    """Examine this machine. Takes about three seconds where torch works; never raises."""
    lines: list[Line] = []
    for name, check in CHECKS:
        try:
            lines += check()
        except Exception as error:  # whatever is broken, the other lines are still wanted
            lines.append(
                Line(name, "problem", _first_line(error), _("Send us this line: the doctor did not expect it."))
            )
    return lines


def table(lines: list[Line]) -> Table:
    """Lay out a report; prints in a terminal with `rich.print` and shows itself in a notebook."""
    from rich.table import Table
    from rich.text import Text

    laid_out = Table(show_edge=False, pad_edge=False)
    for title in (_("Part"), _("Status"), _("Found")):
        laid_out.add_column(title, overflow="fold")
    for line in lines:
        found = Text(line.text) if not line.fix else Text(f"{line.text}\n-> {line.fix}")
        laid_out.add_row(line.name, Text(line.status, style=STYLES[line.status]), found)
    return laid_out


def show() -> Table:
    """Return the report on this machine, as the last line of a notebook cell shows it."""
    return table(report())


def _python() -> Iterator[Line]:
    version = platform.python_version()
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        yield Line("Python", "ok", f"{version}, {platform.system()} {platform.machine()}")
    else:
        yield Line(
            "Python",
            "problem",
            version,
            _("Install Python 3.11, 3.12 or 3.13, remove .venv and run `make lab`."),
        )


def _torch() -> Iterator[Line]:
    torch, error = _import("torch")
    if torch is None:
        yield Line(
            "torch",
            "problem",
            _("does not load: {error}").format(error=error),
            _("Remove .venv and run `make lab`; without a GPU, `make lab TORCH=cpu`."),
        )
        return
    build = torch.version.cuda
    kind = _("CUDA {version} build").format(version=build) if build else _("CPU build")
    yield _dated("torch", "torch", f"{torch.__version__}, {kind}")


def _triton() -> Iterator[Line]:
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        there = f"{platform.system()} {platform.machine()}"
        yield Line("triton", "ok", _("none for {system}: recorded results are shown").format(system=there))
        return
    triton, error = _import("triton")
    if triton is None:
        fix = _("Run `.venv/bin/pip install triton`; until then kernels are read and recorded results shown.")
        yield Line("triton", "warning", _("does not load: {error}").format(error=error), fix)
    else:
        yield _dated("triton", "triton", str(triton.__version__))


def _gpu() -> Iterator[Line]:
    torch, _error = _import("torch")
    if torch is not None and torch.cuda.is_available():
        yield from _live_gpu(torch)
        return
    present = _gpus_of_the_driver()
    if not present:
        yield Line("GPU", "ok", _("no NVIDIA driver found: every chapter runs on the processor"))
    elif torch is None:
        yield Line("GPU", "warning", _("{gpu}, unused: torch does not load").format(gpu=present), _("Repair torch."))
    elif not torch.version.cuda:
        text = _("{gpu}, unused: this torch is the CPU build").format(gpu=present)
        yield Line("GPU", "warning", text, _("Run `make lab TORCH=gpu`."))
    elif os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        text = _("{gpu}, hidden by CUDA_VISIBLE_DEVICES").format(gpu=present)
        yield Line("GPU", "warning", text, _("Unset CUDA_VISIBLE_DEVICES."))
    else:
        text = _("{gpu}, unused: the driver does not serve CUDA {version}").format(
            gpu=present, version=torch.version.cuda
        )
        yield Line("GPU", "warning", text, _("Update the NVIDIA driver, or run `make lab TORCH=cpu`."))


def _live_gpu(torch: Any) -> Iterator[Line]:
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    text = _("{name}, {memory:.0f} GiB, compute capability {major}.{minor}").format(
        name=properties.name, memory=properties.total_memory / 2**30, major=capability[0], minor=capability[1]
    )
    if capability < OLDEST_CAPABILITY:
        fix = _("Triton needs 7.5 or newer: set CUDA_VISIBLE_DEVICES= (empty) to work on the processor.")
        yield Line("GPU", "warning", text, fix)
    else:
        yield Line("GPU", "ok", text)
    yield from _launch_tools()


def _launch_tools() -> Iterator[Line]:
    """Triton compiles a small C file when a kernel is first launched: that takes a compiler and Python's headers."""
    compiler = next((c for c in (os.environ.get("CC"), "gcc", "clang", "cc") if c and shutil.which(c)), None)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if compiler:
        yield Line("C compiler", "ok", str(shutil.which(compiler)))
    else:
        fix = _("Install one (Debian, Ubuntu: sudo apt install gcc): kernels cannot be launched without it.")
        yield Line("C compiler", "problem", _("none found"), fix)
    if (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        yield Line("Python headers", "ok", version)
    else:
        fix = _("Install them (Debian, Ubuntu: sudo apt install {package}): kernels cannot be launched without them.")
        yield Line("Python headers", "problem", _("Python.h not found"), fix.format(package=f"{version}-dev"))


def _gpus_of_the_driver() -> str:
    """Return the GPU names that the NVIDIA driver lists, with or without a working torch; empty where there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return ", ".join(answer.stdout.split("\n")).strip(", ") if answer.returncode == 0 else ""


def _processor() -> Iterator[Line]:
    torch, _error = _import("torch")
    if torch is None:
        yield Line(_("processor"), "ok", processor_name())
        return
    from servelab.device.accelerator import has_fast_bfloat16
    from servelab.device.ceiling import measured_bandwidth, measured_matmul_flops

    read = measured_bandwidth("cpu")
    single = measured_matmul_flops(torch.float32, "cpu")
    text = _("{name}: reads {read:.0f} GB/s, float32 {single:.0f} GFLOP/s").format(
        name=processor_name(), read=read / 1e9, single=single / 1e9
    )
    yield Line(_("processor"), "ok", text)
    half = measured_matmul_flops(torch.bfloat16, "cpu")
    choice = "bfloat16" if has_fast_bfloat16() else "float32"
    text = _("{half:.0f} GFLOP/s, {ratio:.2g} times the speed of float32: the course computes in {choice}").format(
        half=half / 1e9, ratio=half / single, choice=choice
    )
    yield Line("bfloat16", "ok", text)


def _notebooks() -> Iterator[Line]:
    for package in SERVED:
        try:
            yield _dated(package, package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Line(package, "problem", _("missing"), _("Remove .venv and run `make lab`."))


def _model_cache() -> Iterator[Line]:
    folder = cache_folder() / "models"
    ready = sorted(manifest.parent for manifest in folder.glob("*/servelab.json"))
    if not ready:
        text = _("no model in {folder} yet").format(folder=_at_home(folder))
        yield Line(_("model"), "warning", text, _("`make lab` fetches and prepares it; that takes the network once."))
        return
    sizes = (sum(f.stat().st_size for f in model.iterdir() if f.is_file()) for model in ready)
    found = ", ".join(f"{model.name} ({size / 1e6:.0f} MB)" for model, size in zip(ready, sizes, strict=True))
    yield Line(_("model"), "ok", _("{found} in {folder}").format(found=found, folder=_at_home(folder)))


def _disk() -> Iterator[Line]:
    folder = cache_folder()
    place = next(f for f in (folder, *folder.parents) if f.exists())
    free = shutil.disk_usage(place).free
    text = _("{free:.0f} GB free at {folder}").format(free=free / 1e9, folder=_at_home(folder))
    fix = _("Free some, or set SERVELAB_CACHE to a folder on a larger disk.")
    if free < NO_DISK_BYTES:
        yield Line(_("disk"), "problem", text, fix)
    elif free < LITTLE_DISK_BYTES:
        yield Line(_("disk"), "warning", text, fix)
    else:
        yield Line(_("disk"), "ok", text)


def _dated(name: str, package: str, text: str) -> Line:
    """Return an ok line, or a problem where the installed version is older than what the package asks for."""
    oldest = _lower_bounds().get(package)
    installed = importlib.metadata.version(package)
    if oldest and _numbers(installed) < _numbers(oldest):
        text = _("{text}: the course needs {oldest} or newer").format(text=text, oldest=oldest)
        return Line(name, "problem", text, _("Run `make lab`: it brings the packages up to date."))
    return Line(name, "ok", text)


def _lower_bounds() -> dict[str, str]:
    """Return package -> oldest version, from what the installed course itself declares."""
    from packaging.requirements import Requirement

    asked = map(Requirement, importlib.metadata.requires("servelab") or [])
    return {r.name: s.version for r in asked for s in r.specifier if s.operator == ">="}


def _numbers(version: str) -> tuple[int, ...]:
    from packaging.version import Version

    return Version(version).release


def _import(name: str) -> tuple[ModuleType | None, str]:
    """Import a module that may be broken: (module, "") or (None, the first line of what went wrong)."""
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a broken build raises anything from OSError to AttributeError
        return None, _first_line(error)


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def _at_home(folder: Path) -> str:
    """Return the path with the home folder as ~: a report is often pasted where others read it."""
    return f"~/{folder.relative_to(Path.home()).as_posix()}" if folder.is_relative_to(Path.home()) else str(folder)


CHECKS: tuple[tuple[str, Callable[[], Iterator[Line]]], ...] = (
    ("Python", _python),
    ("torch", _torch),
    ("triton", _triton),
    ("GPU", _gpu),
    ("processor", _processor),
    ("JupyterLab", _notebooks),
    ("model", _model_cache),
    ("disk", _disk),
)
