"""SwiGLU's activation (Shazeer 2020): one half of the projection gates the other."""

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``. gate_and_up: [..., 2I], gate first; the result is [..., I]."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up
