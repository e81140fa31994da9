"""`on_gpu`: a number measured on this machine's GPU, or the one that was recorded where there is none.

`make gpu` runs every cell that calls it on a GPU machine, and keeps what came out in `static/gpu/`, with the device and
the date. So a number of a GPU that the course shows was measured by the very cell that shows it.
"""

import datetime
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from servelab.translation import _

RECORDS = Path(__file__).parent / "static" / "gpu"
# A folder to keep what is measured in: `benchmarks/kernel/cell.py` sets it.
KEEP = "SERVELAB_KEEP_GPU_RECORDS"
VERSION = 1


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What one cell measured. values: by what they are of, in `unit`. date: in ISO form."""

    values: Mapping[str, float]
    unit: str
    device: str
    date: str

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "GpuRecord":
        """Raises ValueError where the file is not a record of this version."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("version") != VERSION:
                raise ValueError("another version")
            return cls(**content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"expected a GPU record of version {VERSION} in {path}, got {error}") from None


def on_gpu(name: str, unit: str, measure: Callable[[], Mapping[str, float]]) -> None:
    """Print what `measure` returns, by what it is of, in `unit`, with device and date.

    Without a GPU that PyTorch can use, `measure` is not called, and the recorded values of this name are printed;
    without them too, that there are none. Raises what `measure` raises.
    """
    import torch

    from servelab.device import machine_name

    if torch.cuda.is_available():
        values = {label: float(value) for label, value in measure().items()}
        record = GpuRecord(values, unit, machine_name(), datetime.date.today().isoformat())
        if folder := os.environ.get(KEEP):
            record.save(Path(folder) / f"{name}.json")
    elif (path := RECORDS / f"{name}.json").is_file():
        record = GpuRecord.load(path)
        print(_("No GPU here, so what was recorded on one:"))
    else:
        print(_("No GPU here, and nothing recorded on one yet. With a GPU, this cell measures."))
        return
    for label, value in record.values.items():
        print(f"{label}: {value:.3g} {unit}")
    print(_("Measured on {device}, {date}").format(device=record.device, date=record.date))
