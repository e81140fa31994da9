"""Rotary position embedding (RoPE, Su et al. 2021): turn pairs of dimensions by an angle that grows with position.

Dimension d is paired with d + D/2 ("half-split", the layout of Hugging Face weights). GGUF files pair
2d with 2d + 1 instead; `servelab.model` puts their rows back in order when it reads them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from servelab import kernels
from servelab.ops import backend


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's stretch of the low frequencies ("llama3"), so that a longer context than trained works.

    Wavelengths above ``original_context / low_freq_factor`` tokens are stretched `factor` times, those below
    ``original_context / high_freq_factor`` are kept, those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Return the angle per position of each pair of dimensions: [D/2] float32, ``theta ** (-2d / D)``."""
    if head_dim % 2:
        raise ValueError(f"expected an even head_dim, because RoPE turns pairs of dimensions, got {head_dim}")
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    # 0 where the wavelength is long (stretched), 1 where it is short (kept), a ramp between
    kept = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    kept = kept.clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def rotary_tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return ``(cos, sin)``, each [T, 1, D], ready for `rotary_embedding`.

    positions: [T] integers; frequencies: [D/2] float32. Angles are computed in float32 and rounded once.
    The first half of `sin` carries the minus sign of the rotation.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1)[:, None].to(dtype), torch.cat((-sin, sin), dim=-1)[:, None].to(dtype)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head of x [T, H, D] by the angles of its token (`rotary_tables`)."""
    if backend.launches(x):
        return kernels.rotary_embedding(x, cos, sin)
    if backend.computes(x) and cos.dtype == sin.dtype == x.dtype:
        from servelab.ops.compiled import pointwise

        return pointwise.rotary_embedding(x, cos, sin)
    return kernels.rotary_embedding_reference(x, cos, sin)
