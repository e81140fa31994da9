"""Verification of draft tokens (Leviathan et al. 2023; Chen et al. 2023)."""

from torch import Tensor

from servelab import kernels
from servelab.kernels.rejection_sample import draw
from servelab.ops import backend

__all__ = ["draw", "rejection_sample"]


def rejection_sample(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    num_draft: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """`servelab.kernels.rejection_sample`; nothing but shapes and devices is checked."""
    operator = kernels.rejection_sample if backend.launches(target_probs) else kernels.rejection_sample_reference
    return operator(draft_tokens, draft_probs, target_probs, num_draft, uniforms)
