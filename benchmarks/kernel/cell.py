"""Every cell of the notebooks that is meant for a GPU, run on this one. A cell stands alone: it imports all it uses."""

import re
import time
from pathlib import Path

from benchmarks.kernel.check import Bench
from benchmarks.report import Measurement, Result

SOURCES = Path(__file__).resolve().parents[2] / "notebooks" / "source"
HEADER = re.compile(r"^# %%(.*)$", re.M)


def gpu_cells(source: str) -> list[str]:
    """The code of the cells with the tag "gpu", of a notebook in percent format."""
    parts = HEADER.split(source)[1:]
    return [
        code.strip()
        for header, code in zip(parts[::2], parts[1::2], strict=True)
        if '"gpu"' in header and "[markdown]" not in header
    ]


def run(bench: Bench) -> Result:
    """Raises whatever a cell raises."""
    measurements = []
    for path in sorted(SOURCES.glob("*.py")):
        for number, code in enumerate(gpu_cells(path.read_text(encoding="utf-8"))):
            started = time.perf_counter()
            exec(compile(code, f"{path.name}, GPU cell {number}", "exec"), {"__name__": "__main__"})
            seconds = time.perf_counter() - started
            measurements.append(Measurement("cell", "s", (seconds,), {"notebook": path.stem, "cell": number}))
    return Result(tuple(measurements))
