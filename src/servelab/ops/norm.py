"""RMSNorm: scale a vector to root mean square 1, then by a learned weight (Zhang and Sennrich 2019)."""

import torch
from torch import Tensor

from servelab.ops import backend


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype.

    x: [..., N]; weight: [N]. The mean is taken in float32; in a 16-bit dtype the normalised vector is rounded
    before it meets the weight, as the models were trained.
    """
    if backend.computes(x) and backend.computes(weight):
        from servelab.ops.compiled import pointwise

        return pointwise.rms_norm(x, weight, eps)
    x32 = x.float()
    normalised = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return normalised.to(x.dtype) * weight
