"""`verify`: from the target's logits at every draft token to the tokens that a step emits.

The rows of a step need not look alike: greedy or sampled, with many, few or no draft tokens. Each position goes
through the same processors as without speculation, with the draft tokens before it in its history.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from servelab.sampling.distribution import most_likely, probabilities
from servelab.sampling.history import TokenHistory
from servelab.sampling.params import SamplingParams
from servelab.sampling.processor import process_logits
from servelab.sampling.rejection import rejection_sample
from servelab.sampling.sample import draw_token, uniform


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of one request's draft.

    token_ids: the accepted draft tokens and one token more. num_accepted: how many were accepted. For each draft
    token in turn, p and q: the probability that target and draft gave it (q is 1 for one that was named outright);
    u: the number it was compared with, ``u * q < p``; 0 for a greedy request, which draws none.
    """

    token_ids: list[int]
    num_accepted: int
    p: list[float]
    q: list[float]
    u: list[float]


def verify(
    logits: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Sequence[Tensor | None],
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator],
    histories: Sequence[TokenHistory] | None = None,
    end_token_ids: Collection[int] = (),
) -> list[Verification]:
    """Choose the next tokens of N requests: the accepted ones of each draft, and one more.

    drafts: the draft tokens of each request, n of them, which may be none. logits: [sum(n + 1), V], request after
    request the target's logits at its draft tokens and after the last; not changed. draft_probs: [n, V] of each
    request, or None when it named its tokens outright; not looked at when the request is greedy or drafted nothing.
    params, generators, histories, end_token_ids: as for `sample`, histories without the draft.
    A request takes n + 1 uniform numbers of its own generator, none when it is greedy, and without a draft chooses
    the token that `sample` does. Raises ValueError as `sample` and `rejection_sample` do.
    """
    lengths = [len(draft) for draft in drafts]
    if not len(drafts) == len(draft_probs) == len(params) == len(generators):
        raise ValueError(
            f"expected as many draft_probs, params and generators as drafts ({len(drafts)}), got {len(draft_probs)}, "
            f"{len(params)} and {len(generators)}"
        )
    if histories is not None and len(histories) != len(drafts):
        raise ValueError(f"expected a history for each of {len(drafts)} drafts, got {len(histories)}")
    if logits.dim() != 2 or len(logits) != sum(lengths) + len(drafts):
        raise ValueError(
            f"expected logits [{sum(lengths) + len(drafts)}, V] for {lengths} draft tokens and one more each, got "
            f"{list(logits.shape)}"
        )
    owners = [request for request, length in enumerate(lengths) for _ in range(length + 1)]
    starts = [0] * len(drafts)
    for request in range(1, len(drafts)):
        starts[request] = starts[request - 1] + lengths[request - 1] + 1
    row_params = [params[request] for request in owners]
    row_histories = None
    if histories is not None and any(request_params.needs_history for request_params in params):
        row_histories = [
            histories[request].after(drafts[request][: row - starts[request]]) for row, request in enumerate(owners)
        ]
    logits = process_logits(logits, row_params, row_histories, end_token_ids)
    tokens, tops = most_likely(logits, row_params)
    results: list[Verification] = []
    for request, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        draft, rows = list(drafts[request]), slice(start, start + length + 1)
        if params[request].temperature == 0:
            results.append(_verify_greedy(draft, tokens[rows]))
        elif not draft:
            token = draw_token(logits[start], tops[start], params[request], generators[request])
            results.append(Verification(token_ids=[token], num_accepted=0, p=[], q=[], u=[]))
        else:
            probs = probabilities(logits[rows], row_params[rows])
            results.append(_verify_sampled(draft, draft_probs[request], probs, generators[request]))
    return results


def _verify_greedy(draft: list[int], tokens: list[int]) -> Verification:
    """Both distributions are one-hot: a draft token stands exactly when it is the target's own choice."""
    agrees = [own == token for own, token in zip(draft, tokens, strict=False)]
    num_accepted = agrees.index(False) if False in agrees else len(draft)
    return Verification(
        token_ids=tokens[: num_accepted + 1],
        num_accepted=num_accepted,
        p=[float(agree) for agree in agrees],
        q=[1.0] * len(draft),
        u=[0.0] * len(draft),
    )


def _verify_sampled(
    draft: list[int], draft_probs: Tensor | None, target_probs: Tensor, generator: torch.Generator
) -> Verification:
    """One request: n >= 1 draft tokens, draft_probs [n, V] or None, target_probs [n + 1, V]."""
    n, device = len(draft), target_probs.device
    named = torch.tensor([draft], dtype=torch.int64, device=device)
    given = None if draft_probs is None else draft_probs[None]
    uniforms = uniform(generator, n + 1)[None].to(device)
    tokens, num_accepted = rejection_sample(
        named, given, target_probs[None], torch.tensor([n], device=device), uniforms
    )
    places = range(n)
    return Verification(
        token_ids=tokens[0, : int(num_accepted) + 1].tolist(),
        num_accepted=int(num_accepted),
        p=target_probs[places, draft].tolist(),
        q=[1.0] * n if given is None else given[0, places, draft].tolist(),
        u=uniforms[0, :n].tolist(),
    )
