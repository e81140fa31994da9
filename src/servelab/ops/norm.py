"""RMSNorm: scale a vector to root mean square 1, then by a learned weight (Zhang and Sennrich 2019)."""

from torch import Tensor

from servelab import kernels
from servelab.ops import backend


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype.

    x: [..., N]; weight: [N]. The mean is taken in float32; in a 16-bit dtype the normalised vector is rounded
    before it meets the weight, as the models were trained.
    """
    if backend.launches(x):
        return kernels.rms_norm(x, weight, eps)
    if backend.computes(x) and backend.computes(weight):
        from servelab.ops.compiled import pointwise

        return pointwise.rms_norm(x, weight, eps)
    return kernels.rms_norm_reference(x, weight, eps)
