"""The verification step of speculative decoding: keep as many draft tokens as the target's distribution allows.

A draft token d that was drawn from q is accepted with probability min(1, p(d) / q(d)). The first one that is not is
replaced by a draw from max(p - q, 0), normalised; when all are accepted, one more token is drawn from p. What comes
out is distributed as p: a token is accepted with min(p, q), and the residual adds what p has more.

    i        0      1      2     ...          one program: one request. It walks over its draft tokens to the first
    u q < p  yes    yes    no                 that is rejected, and then twice over the V numbers of one distribution,
    token    d_0    d_1    from max(p-q, 0)   in tiles of SIZE: to sum it, and to find where the sum passes u * total.

Bytes requested a request: 8 + 8 + 16 each draft token looked at, then 2 V e of p and, after a rejection, 2 V e of q.
As separate operations (subtract, clamp, sum, divide, cumulate, search) V numbers travel some twelve times.

Papers: https://arxiv.org/abs/2211.17192 (Fast Inference from Transformers via Speculative Decoding),
https://arxiv.org/abs/2302.01318 (Accelerating Large Language Model Decoding with Speculative Sampling).
"""

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import MAX_REGISTERS, can_launch, launch

SIZE = 2048
# Cumulative sums of more than this take new memory from the system each time, which costs more than the sums.
WEIGHTS_AT_ONCE = 2**16


def rejection_sample_reference(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    num_draft: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """What `rejection_sample` returns, in plain PyTorch."""
    num_requests, k = draft_tokens.shape
    rows = torch.arange(num_requests, device=target_probs.device)
    places = torch.arange(k, device=target_probs.device)
    drafted = places < num_draft[:, None]  # [B, k]
    named = draft_tokens.long().masked_fill(~drafted, 0)

    p = target_probs[:, :k].gather(2, named[:, :, None]).squeeze(2)  # [B, k]
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(2, named[:, :, None]).squeeze(2)
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


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One place in each row, with a probability in proportion to its weight: where the cumulative sum passes u.

    weights: [N, V] >= 0, each row with a positive sum; uniforms: [N] in [0, 1). Returns int64 [N]; a place of weight
    0 is never drawn. Sums are float64.
    """
    places = []
    num_rows = max(1, WEIGHTS_AT_ONCE // weights.shape[1])
    for some, u in zip(torch.split(weights, num_rows), torch.split(uniforms, num_rows), strict=True):
        sums = some.double().cumsum(dim=-1)
        # The first sum above the mark: it rises there, and the mark stays below the last sum since u <= 1 - 2**-53.
        marks = u.to(sums)[:, None] * sums[:, -1:]
        places.append(torch.searchsorted(sums, marks, right=True).squeeze(-1))
    return torch.cat(places)


@triton.jit
def _rejection_sample(
    draft_tokens, draft_probs, target_probs, num_draft, uniforms, tokens, num_accepted,
    # [B, k], [B, k, V], [B, k + 1, V], [B], [B, k + 1], [B, k + 1], [B]
    k, vocab_size, NAMED: tl.constexpr, SIZE: tl.constexpr,  # NAMED: drafts without probabilities, each is certain
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    drafts = tl.load(num_draft + request).to(tl.int32)
    accepted = tl.full([], 0, tl.int64)
    going = tl.full([], 1, tl.int64)  # until the first that is rejected
    for i in range(k):
        token = tl.load(draft_tokens + request * k + i, mask=i < drafts, other=0).to(tl.int64)
        p = tl.load(target_probs + (request * (k + 1) + i) * vocab_size + token).to(tl.float64)
        q = tl.full([], 1.0, tl.float64)
        if not NAMED:
            q = tl.load(draft_probs + (request * k + i) * vocab_size + token).to(tl.float64)
        u = tl.load(uniforms + request * (k + 1) + i).to(tl.float64)
        # In float64, where u * q stays below q: p == q is always accepted.
        passes = tl.where(u * q < p, 1, 0)
        going = going * passes * tl.where(i < drafts, 1, 0)
        tl.store(tokens + request * (k + 1) + i, tl.where(going == 1, token, -1))
        accepted += going
    tl.store(tokens + request * (k + 1) + k, tl.full([], -1, tl.int64))
    tl.store(num_accepted + request, accepted)

    # The replacement, or the token after the last: from p, less what was rejected.
    row = target_probs + (request * (k + 1) + accepted) * vocab_size
    last = tl.minimum(accepted, k - 1)
    q_size = tl.where(accepted < drafts, vocab_size, 0)  # how much of q there is to take off
    rejected = tl.load(draft_tokens + request * k + last, mask=accepted < drafts, other=-1).to(tl.int64)
    draft_row = draft_probs + (request * k + last) * vocab_size
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab_size, SIZE):
        total += tl.sum(_weights(row, draft_row, rejected, start, vocab_size, q_size, NAMED, SIZE), 0)
    if total == 0.0:  # p and q differ by rounding alone: p is right to within that
        q_size = 0
        rejected = tl.full([], -1, tl.int64)
        for start in range(0, vocab_size, SIZE):
            total += tl.sum(_weights(row, draft_row, rejected, start, vocab_size, q_size, NAMED, SIZE), 0)
    mark = tl.load(uniforms + request * (k + 1) + k).to(tl.float64) * total
    before = tl.full([], 0.0, tl.float64)  # the sum up to the tile
    place = tl.full([], 0, tl.int64)  # how many sums do not pass the mark
    last_place = tl.full([], 0, tl.int64)  # the last place of a positive weight: sums in another order may differ
    for start in range(0, vocab_size, SIZE):
        weights = _weights(row, draft_row, rejected, start, vocab_size, q_size, NAMED, SIZE)
        places = start + tl.arange(0, SIZE)
        sums = before + tl.cumsum(weights, 0)
        place += tl.sum(((sums <= mark) & (places < vocab_size)).to(tl.int64), 0)
        last_place = tl.maximum(last_place, tl.max(tl.where(weights > 0.0, places, 0), 0).to(tl.int64))
        before += tl.sum(weights, 0)
    tl.store(tokens + request * (k + 1) + accepted, tl.minimum(place, last_place))


@triton.jit
def _weights(row, draft_row, rejected, start, vocab_size, q_size, NAMED: tl.constexpr, SIZE: tl.constexpr):
    """A tile of p, or of max(p - q, 0) after a rejection, in float64."""
    places = start + tl.arange(0, SIZE)
    mask = places < vocab_size
    p = tl.load(row + places, mask=mask, other=0.0)
    if NAMED:
        p = tl.where(places == rejected, 0.0, p)
    else:
        q = tl.load(draft_row + places, mask=places < q_size, other=0.0)
        p = tl.maximum(p - q, 0.0)
    return p.to(tl.float64)


def rejection_sample(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    num_draft: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify the draft tokens of B requests; `servelab.sampling.rejection_sample` checks the numbers first.

    draft_tokens: int64 [B, k]. draft_probs: [B, k, V], what each token was drawn from, or None when each was named
    outright. target_probs: [B, k + 1, V], float32 or float64. num_draft: int64 [B], how many of a row's draft tokens
    count. uniforms: [B, k + 1] in [0, 1), the last for the replacement or the additional token.

    Returns tokens int64 [B, k + 1], -1 behind the last, and num_accepted int64 [B]. Runs on a GPU or in Triton's
    interpreter; elsewhere the reference computes. Raises ValueError for shapes or devices that do not fit.
    """
    num_requests, k = draft_tokens.shape
    vocab_size = target_probs.shape[2]
    if target_probs.shape != (num_requests, k + 1, vocab_size) or uniforms.shape != (num_requests, k + 1):
        raise ValueError(
            f"expected target_probs [B, k + 1, V] and uniforms [B, k + 1] for draft_tokens [{num_requests}, {k}], got "
            f"{list(target_probs.shape)} and {list(uniforms.shape)}"
        )
    tensors = [draft_tokens, target_probs, num_draft, uniforms, *([] if draft_probs is None else [draft_probs])]
    if len({x.device for x in tensors}) != 1:
        raise ValueError(f"expected tensors on one device, got {sorted({str(x.device) for x in tensors})}")
    if not can_launch(target_probs) or not k:
        return rejection_sample_reference(draft_tokens, draft_probs, target_probs, num_draft, uniforms)
    target_probs = target_probs.contiguous()
    tokens = torch.empty((num_requests, k + 1), dtype=torch.int64, device=target_probs.device)
    num_accepted = torch.empty(num_requests, dtype=torch.int64, device=target_probs.device)
    launch(
        _rejection_sample,
        (num_requests,),
        target_probs.device,
        draft_tokens.contiguous(),
        target_probs if draft_probs is None else draft_probs.to(target_probs.dtype).contiguous(),
        *(target_probs, num_draft.contiguous(), uniforms.contiguous(), tokens, num_accepted, k, vocab_size),
        NAMED=draft_probs is None,
        SIZE=SIZE,
        num_warps=4,
        maxnreg=MAX_REGISTERS,
    )
    return tokens, num_accepted
