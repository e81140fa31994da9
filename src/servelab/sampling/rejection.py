"""`rejection_sample`: keep as many draft tokens as the target's distribution allows, exactly.

A draft token d that was drawn from q is accepted with probability min(1, p(d) / q(d)). The first one that is not is
replaced by a draw from max(p - q, 0), normalised; when all are accepted, one more token is drawn from p. What comes
out is distributed as p: a token is accepted with min(p, q), and the residual adds what p has more. (Leviathan et al.
2023, "Fast Inference from Transformers via Speculative Decoding"; Chen et al. 2023.)
"""

import torch
from torch import Tensor

from servelab.sampling.sample import draw

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
    num_requests, k = draft_tokens.shape
    rows = torch.arange(num_requests, device=target_probs.device)
    places = torch.arange(k, device=target_probs.device)
    drafted = places < num_draft[:, None]  # [B, k]
    named = draft_tokens.long().masked_fill(~drafted, 0)

    p = target_probs[:, :k].gather(2, named[:, :, None]).squeeze(2)  # [B, k]
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(2, named[:, :, None]).squeeze(2)
    if not ((q > 0) | ~drafted).all():
        raise ValueError(f"expected draft_probs above 0 at each draft token, got {q[drafted].tolist()}")
    # In float64, where u * q stays below q: p == q is always accepted.
    accepted = (uniforms[:, :k].double() * q < p) & drafted
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)  # [B]

    last = target_probs[rows, num_accepted]  # [B, V], a copy
    rejected = num_accepted < num_draft
    place = num_accepted[rejected]
    if draft_probs is None:
        last[rejected, named[rejected, place]] = 0
    else:
        last[rejected] = (last[rejected] - draft_probs[rejected, place]).clamp_(min=0).to(last)
    # Where p and q differ by rounding alone nothing may be left; p is then right to within that rounding.
    empty = last.sum(dim=1) == 0
    last[empty] = target_probs[empty, num_accepted[empty]]

    tokens = torch.full((num_requests, k + 1), -1, dtype=torch.int64, device=target_probs.device)
    tokens[:, :k] = named.masked_fill(places >= num_accepted[:, None], -1)
    tokens[rows, num_accepted] = draw(last, uniforms[:, k])
    return tokens, num_accepted


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
