"""`watched`: what a kernel's programs did, seen on this machine, or as it was recorded where Triton does not run."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servelab.course.near import unknown
from servelab.translation import _

if TYPE_CHECKING:
    from servelab.kernels.inspect import Observation
    from servelab.trace.kernel import KernelRecord

RECORDS = Path(__file__).parent / "static" / "kernel"
# A folder to keep what is watched in: `notebooks/build.py` sets it, so that a record is always a chapter's own.
KEEP = "SERVELAB_KEEP_RECORDS"


def watched(name: str, watch: Callable[..., "Observation"], *arguments: Any, **options: Any) -> "KernelRecord":
    """The record of the one launch that ``watch(*arguments, **options)`` observes.

    Triton runs on Linux. Elsewhere it is the recorded one of this name; ValueError where there is none.
    Raises what `watch` raises.
    """
    from servelab.trace.kernel import KernelRecord

    if importlib.util.find_spec("triton") is not None:
        record = watch(*arguments, **options).record
        if folder := os.environ.get(KEEP):
            record.save(Path(folder) / f"{name}.json")
        return record
    names = sorted(path.stem for path in RECORDS.glob("*.json"))
    if name not in names:
        raise ValueError(unknown(_("record"), name, names))
    print(_("Triton does not run on this system: recorded on Linux."))
    return KernelRecord.load(RECORDS / f"{name}.json")
