"""`observe`: call an operator of `servelab.kernels` in the interpreter, and see what each of its programs did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servelab.kernels.inspect.process import Worker, shared
from servelab.kernels.launch import redirected
from servelab.trace.kernel import KernelRecord


@dataclass(frozen=True, slots=True)
class Observation:
    """result: what the operator returned. records: of its launches, in order."""

    result: Any
    records: tuple[KernelRecord, ...]

    @property
    def record(self) -> KernelRecord:
        """Of the only launch. Raises ValueError where there were none or several."""
        if len(self.records) != 1:
            raise ValueError(f"expected one launch, got {[record.kernel for record in self.records]}")
        return self.records[0]


def observe(operator: Callable[..., Any], *args: Any, worker: Worker | None = None, **kwargs: Any) -> Observation:
    """Run ``operator(*args, **kwargs)`` in Triton's interpreter, in a child process, on CPU tensors.

    operator: a launcher of `servelab.kernels`, or any function that can be imported and calls them. Tensors that it
    writes to are written. worker: the process, by default one that all calls share.

    An address outside of every tensor is not followed: it becomes a fault of the record, and a load there gives 0.
    Raises what the operator raises, and RuntimeError where there is no Triton for this system.
    """
    result, records = (worker or shared("interpret")).call(_observed, operator, args, kwargs)
    return Observation(result, tuple(KernelRecord.from_json(record) for record in records))


def _observed(operator: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[dict[str, Any]]]:
    """In the child process."""
    from servelab.kernels.language import IS_INTERPRETED

    if not IS_INTERPRETED:
        raise RuntimeError("expected a system that Triton runs on (Linux, x86-64 or arm64), got none here")
    from servelab.kernels.inspect.recorder import EmptyTensors, Recorder

    with EmptyTensors() as empties:
        recorder = Recorder(empties)
        with redirected(recorder.run):
            result = operator(*args, **kwargs)
    return result, [record.to_json() for record in recorder.records]
