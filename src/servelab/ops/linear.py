"""The linear layer, with packed forms for the CPU."""

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from servelab.ops.arena import Arena
from servelab.ops.backend import use_compiled
from servelab.ops.panel import from_panels, pack_panels, panel_rows


class Linear(nn.Linear):
    """``x W^T + b``: x [T, in] -> [T, out]."""

    form = "plain"  # how the weight lies: "plain", "panels" (compiled kernels) or "onednn"

    def reset_parameters(self) -> None:
        """Draw nothing: weights are loaded, or drawn by whoever makes a network.

        For a network without memory (device "meta") PyTorch's own draw imports its compiler: 170 MB and some seconds.
        """

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "plain" or (x.requires_grad and torch.is_grad_enabled()):
            return F.linear(x, self.dense_weight(), self.bias)
        if self.form == "onednn":
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return packed
        from servelab.ops.compiled.linear import linear

        return linear(x, self.weight, self.bias, self.out_features)

    def pack(self, arena: Arena | None = None) -> None:
        """Lay the weight out once as a fast CPU path reads it, for inference; does nothing where there is none.

        float32 weights become panels for a compiled kernel. Where every number is a bfloat16, as in most published
        models, the panels hold bfloat16: half the bytes to read, and the same float32 products. All layers of
        SmolLM2 took 10.9 ms with 1 token and 25 ms with 16, against 36 and 68 ms packed by oneDNN, which in turn
        beats a plain weight (2 cores of an AMD EPYC with AVX2, November 2026). A processor that multiplies bfloat16
        matrices in hardware gets oneDNN's own layout.

        arena: where the panels are to lie, by default wherever PyTorch finds room.
        """
        if self.form != "plain":
            return
        weight = self.weight.detach()
        if weight.dtype == torch.float32 and weight.is_cpu and use_compiled():
            self.form = "panels"
            packed = pack_panels(weight) if arena is None else pack_panels(weight, arena.empty)
        elif can_use_onednn(weight):
            self.form, packed = "onednn", torch.ops.mkldnn._reorder_linear_weight(weight, None)
        else:
            return
        self.weight = nn.Parameter(packed, requires_grad=False)

    def dense_weight(self) -> Tensor:
        """The weight [out, in] as it was before `pack`; a copy where it is packed, for whoever reads weights."""
        if self.form == "panels":
            return from_panels(self.weight, self.out_features)
        if self.form == "onednn":
            dense: Tensor = self.weight.to_dense()
            return dense
        return self.weight

    def rows(self, indices: Tensor) -> Tensor:
        """Rows [N, in] of the dense weight: an embedding that is tied to the output reads its vectors here."""
        if self.form == "panels":
            return panel_rows(self.weight, indices)
        return F.embedding(indices, self.dense_weight())


def can_use_onednn(weight: Tensor) -> bool:
    """Whether oneDNN computes with this weight here: x86 CPUs, float32, and bfloat16 where the processor has it."""
    if weight.device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
