"""What a kernel did or would do, without a GPU: in the interpreter, and compiled for GPUs that are not there."""

from servelab.kernels.inspect.inputs import PagedInputs
from servelab.kernels.inspect.observe import Observation, observe
from servelab.kernels.inspect.own import observe_kernel
from servelab.kernels.inspect.process import Worker, WorkerFailed
from servelab.kernels.inspect.resource import SHARED_LIMIT_BYTES, Resources, resources

__all__ = [
    "SHARED_LIMIT_BYTES",
    "Observation",
    "PagedInputs",
    "Resources",
    "Worker",
    "WorkerFailed",
    "observe",
    "observe_kernel",
    "resources",
]
