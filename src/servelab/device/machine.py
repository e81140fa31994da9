"""The name of this machine, as it stands beside every number that was measured on it."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from pathlib import Path


@functools.cache
def machine_name() -> str:
    """Return the GPU's name, or the processor and its usable cores: "AMD EPYC 7B13, 2 cores"."""
    try:
        import torch

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name())
    except Exception:  # a broken torch must not hide the processor's name
        pass
    return processor_name()


def processor_name() -> str:
    """Return the processor's name without marketing marks, and the cores that this process may use."""
    cores = usable_cores()
    return f"{_short(_processor())}, {cores} {'core' if cores == 1 else 'cores'}"


def usable_cores() -> int:
    """Return how many cores the system lets this process use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if answer:
            return answer
    return platform.processor() or platform.machine() or "unknown processor"


def _short(name: str) -> str:
    name = re.sub(r"\((R|TM|tm|r)\)", "", name)
    name = re.sub(r"\s*(\d+-Core Processor|Processor|CPU)?\s*(@\s*[\d.]+\s*GHz)?\s*$", "", name)
    return re.sub(r"\s+", " ", name).strip()
