"""The linear layer, with a packed form for the CPU."""

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """``x W^T + b``: x [T, in] -> [T, out]."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.is_mkldnn:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return packed
        return F.linear(x, self.weight, self.bias)

    def pack(self) -> None:
        """Lay the weight out once as oneDNN reads it, for inference; does nothing where that cannot be done.

        With few tokens a CPU spends much of a product on that layout: all layers of SmolLM2 took 83 ms plain and
        58 ms packed with 4 tokens, 119 and 85 ms with 16 (float32, one thread of an x86 server with AVX2,
        November 2026). `dense_weight()` gives the plain weight back.
        """
        if can_pack(self.weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
            self.weight = nn.Parameter(packed, requires_grad=False)

    def dense_weight(self) -> Tensor:
        """The weight [out, in] as it was before `pack`: a copy where it is packed, for whoever reads weights."""
        weight = self.weight.detach()
        dense: Tensor = weight.to_dense() if weight.is_mkldnn else weight
        return dense


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN computes with this weight here: x86 CPUs, float32, and bfloat16 where the processor has it."""
    if weight.device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
