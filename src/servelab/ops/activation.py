"""SwiGLU's activation (Shazeer 2020): one half of the projection gates the other."""

from torch import Tensor

from servelab import kernels
from servelab.ops import backend


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``. gate_and_up: [..., 2I], gate first; the result is [..., I]."""
    if backend.launches(gate_and_up):
        return kernels.silu_and_mul(gate_and_up)
    if backend.computes(gate_and_up):
        from servelab.ops.compiled import pointwise

        return pointwise.silu_and_mul(gate_and_up)
    return kernels.silu_and_mul_reference(gate_and_up)
