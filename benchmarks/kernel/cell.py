"""Every cell of the notebooks that is meant for a GPU, run on this one. A cell stands alone: it imports all it uses.

What a cell shows through `servelab.course.on_gpu` is kept, for those who have no GPU.
"""

import os
import re
import tempfile
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
    """Raises whatever a cell raises, and ImportError where the course's packages are missing."""
    from servelab.course.live import KEEP, RECORDS, GpuRecord

    measurements = []
    for path in sorted(SOURCES.glob("*.py")):
        for number, code in enumerate(gpu_cells(path.read_text(encoding="utf-8"))):
            case = {"notebook": path.stem, "cell": number}
            with tempfile.TemporaryDirectory() as folder:
                os.environ[KEEP] = folder
                started = time.perf_counter()
                exec(compile(code, f"{path.name}, GPU cell {number}", "exec"), {"__name__": "__main__"})
                measurements.append(Measurement("cell", "s", (time.perf_counter() - started,), case))
                for kept in sorted(Path(folder).glob("*.json")):
                    record = GpuRecord.load(kept)
                    for label, value in record.values.items():
                        measurements.append(Measurement(label, record.unit, (value,), {**case, "record": kept.stem}))
                    record.save(RECORDS / kept.name)
    os.environ.pop(KEEP, None)
    return Result(tuple(measurements))
