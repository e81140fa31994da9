"""SwiGLU's activation (Shazeer 2020): one half of the projection gates the other."""

import torch.nn.functional as F
from torch import Tensor

from servelab.ops import backend


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``. gate_and_up: [..., 2I], gate first; the result is [..., I]."""
    if backend.computes(gate_and_up):
        from servelab.ops.compiled import pointwise

        return pointwise.silu_and_mul(gate_and_up)
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up
