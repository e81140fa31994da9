"""`rejection_sample`: keep as many draft tokens as the target's distribution allows, exactly.

A draft token d that was drawn from q is accepted with probability min(1, p(d) / q(d)). The first one that is not is
replaced by a draw from max(p - q, 0), normalised; when all are accepted, one more token is drawn from p. What comes
out is distributed as p: a token is accepted with min(p, q), and the residual adds what p has more. (Leviathan et al.
2023, "Fast Inference from Transformers via Speculative Decoding"; Chen et al. 2023.)
"""

import torch
from torch import Tensor

from servelab import ops

# float32 sums over a vocabulary of 150,000 are off by less; 16-bit probabilities are not, and are refused.
SUM_TOLERANCE = 1e-3


def rejection_sample(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    num_draft: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify the draft tokens of B requests at once.

    draft_tokens: int64 [B, k]. draft_probs: [B, k, V], what each token was drawn from, or None when each was named
    outright (one-hot). target_probs: [B, k + 1, V], the target's distribution at each draft token and after the last.
    num_draft: int64 [B], 0 .. k: how many of a row's draft tokens count; what stands beyond is not looked at, and the
    row's last distribution is ``target_probs[b, num_draft[b]]``.
    uniforms: [B, k + 1] in [0, 1): the first k decide over the draft tokens, the last draws the replacement or the
    additional token. It is another one, because the uniform that rejected a token is no longer uniform.

    Returns tokens int64 [B, k + 1], ``num_accepted + 1`` of them in each row and -1 beyond, and num_accepted int64 [B].
    Raises ValueError for shapes that do not fit, what is no probability distribution (NaN, negative, another sum than
    1), tokens outside of the vocabulary, a token to which its draft gave probability 0, or uniforms outside of [0, 1).
    """
    _check(draft_tokens, draft_probs, target_probs, num_draft, uniforms)
    return ops.rejection_sample(draft_tokens, draft_probs, target_probs, num_draft, uniforms)


def _check(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, num_draft: Tensor, uniforms: Tensor
) -> None:
    shape = tuple(draft_tokens.shape)
    if (
        draft_tokens.dim() != 2
        or target_probs.dim() != 3
        or target_probs.shape[:2] != (shape[0], shape[1] + 1)
        or not target_probs.shape[2]
        or (draft_probs is not None and draft_probs.shape != (*shape, target_probs.shape[2]))
        or num_draft.shape != shape[:1]
        or uniforms.shape != target_probs.shape[:2]
    ):
        raise ValueError(
            "expected draft_tokens [B, k], draft_probs [B, k, V] or None, target_probs [B, k + 1, V], num_draft [B] "
            f"and uniforms [B, k + 1], got {list(shape)}, "
            f"{None if draft_probs is None else list(draft_probs.shape)}, {list(target_probs.shape)}, "
            f"{list(num_draft.shape)} and {list(uniforms.shape)}"
        )
    k, vocab_size = shape[1], target_probs.shape[2]
    if ((num_draft < 0) | (num_draft > k)).any():
        raise ValueError(f"expected num_draft in 0..{k}, got {num_draft.tolist()}")
    if not ((uniforms >= 0) & (uniforms < 1)).all():
        raise ValueError("expected uniforms in [0, 1), got " + str([float(uniforms.min()), float(uniforms.max())]))
    places = torch.arange(k + 1, device=num_draft.device)
    drafted = places[:k] < num_draft[:, None]
    named = draft_tokens[drafted]
    if ((named < 0) | (named >= vocab_size)).any():
        raise ValueError(f"expected draft_tokens in 0..{vocab_size - 1}, got {named.tolist()}")
    _check_distributions("target_probs", target_probs, places <= num_draft[:, None])
    if draft_probs is not None:
        _check_distributions("draft_probs", draft_probs, drafted)
        q = draft_probs.gather(2, draft_tokens.long().masked_fill(~drafted, 0)[:, :, None]).squeeze(2)  # [B, k]
        if not ((q > 0) | ~drafted).all():
            raise ValueError(f"expected draft_probs above 0 at each draft token, got {q[drafted].tolist()}")


def _check_distributions(name: str, probs: Tensor, used: Tensor) -> None:
    """Look at the rows [V] of probs [B, n, V] that are used [B, n]."""
    sums, lowest = probs.sum(dim=-1), probs.amin(dim=-1)
    wrong = used & ~(((sums - 1).abs() <= SUM_TOLERANCE) & (lowest >= 0))  # a NaN is no number in any range
    if wrong.any():
        request, place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"expected {name}[{request}, {place}] to be probabilities >= 0 with sum 1, got sum "
            f"{float(sums[request, place])} and lowest {float(lowest[request, place])}"
        )
