"""`verify`: from the target's logits at every draft token to the tokens that a step emits.

The rows of a step need not look alike: greedy or sampled, with many, few or no draft tokens. Each position goes
through the same processors as without speculation, with the draft tokens before it in its history.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
    _check(logits, drafts, draft_probs, params, generators, histories)
    rows: list[range] = []  # of each request
    for draft in drafts:
        start = rows[-1].stop if rows else 0
        rows.append(range(start, start + len(draft) + 1))
    row_params = [params[request] for request, own in enumerate(rows) for _ in own]
    row_histories = None
    if histories is not None and any(own.needs_history for own in params):
        row_histories = [
            history.after(draft[:place])
            for history, draft in zip(histories, drafts, strict=True)
            for place in range(len(draft) + 1)
        ]
    logits = process_logits(logits.float(), row_params, row_histories, end_token_ids)
    tokens, tops = most_likely(logits, row_params)

    results: dict[int, Verification] = {}
    named: list[int] = []
    drawn: list[int] = []
    for request, (draft, own) in enumerate(zip(drafts, rows, strict=True)):
        if params[request].temperature == 0:
            results[request] = _verify_greedy(draft, tokens[own.start : own.stop])
        elif not draft:
            token = draw_token(logits[own.start], tops[own.start], params[request], generators[request])
            results[request] = Verification(token_ids=[token], num_accepted=0, p=[], q=[], u=[])
        else:
            (named if draft_probs[request] is None else drawn).append(request)
    for group in (named, drawn):
        if group:
            places = [place for request in group for place in rows[request]]
            own_logits = logits if len(places) == len(logits) else logits[places]  # a copy only where it must be one
            probs = probabilities(own_logits, [row_params[place] for place in places])
            given = [q for request in group if (q := draft_probs[request]) is not None]
            uniforms = [uniform(generators[request], len(rows[request])) for request in group]
            verified = _verify_sampled([drafts[request] for request in group], given, probs, uniforms)
            results.update(zip(group, verified, strict=True))
    return [results[request] for request in range(len(drafts))]


def _verify_greedy(draft: Sequence[int], tokens: list[int]) -> Verification:
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
    drafts: list[Sequence[int]], draft_probs: list[Tensor], target_probs: Tensor, uniforms: list[Tensor]
) -> list[Verification]:
    """B drafts of n >= 1 tokens each, all drawn or all named outright.

    draft_probs: [n, V] of each, none when they were named. target_probs: [sum(n + 1), V]. uniforms: [n + 1] of each.
    """
    lengths, k, device = [len(draft) for draft in drafts], max(map(len, drafts)), target_probs.device
    named = torch.tensor([[*draft, *[0] * (k - len(draft))] for draft in drafts], device=device)
    given = _pad(draft_probs) if draft_probs else None
    target = _pad(list(torch.split(target_probs, [length + 1 for length in lengths])))
    # The last number of each stands in the last column, where the draw after the draft expects it.
    numbers = torch.stack([torch.cat([u[:-1], u.new_zeros(k + 1 - len(u)), u[-1:]]) for u in uniforms]).to(device)
    tokens, num_accepted = rejection_sample(named, given, target, torch.tensor(lengths, device=device), numbers)
    p = target[:, :k].gather(2, named[:, :, None]).squeeze(2)
    q = torch.ones_like(p) if given is None else given.gather(2, named[:, :, None]).squeeze(2)
    return [
        Verification(
            token_ids=own[: accepted + 1], num_accepted=accepted, p=own_p[:length], q=own_q[:length], u=own_u[:length]
        )
        for own, accepted, own_p, own_q, own_u, length in zip(
            tokens.tolist(), num_accepted.tolist(), p.tolist(), q.tolist(), numbers.tolist(), lengths, strict=True
        )
    ]


def _pad(parts: list[Tensor]) -> Tensor:
    """[B, n, V] from B parts of up to n rows [V]; what is filled up is 0."""
    if len(parts) == 1:
        return parts[0][None]  # no copy of what may be megabytes
    return pad_sequence(parts, batch_first=True)


def _check(
    logits: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Sequence[Tensor | None],
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator],
    histories: Sequence[TokenHistory] | None,
) -> None:
    if not len(drafts) == len(draft_probs) == len(params) == len(generators):
        raise ValueError(
            f"expected as many draft_probs, params and generators as drafts ({len(drafts)}), got {len(draft_probs)}, "
            f"{len(params)} and {len(generators)}"
        )
    if histories is not None and len(histories) != len(drafts):
        raise ValueError(f"expected a history for each of {len(drafts)} drafts, got {len(histories)}")
    lengths = [len(draft) for draft in drafts]
    if logits.dim() != 2 or len(logits) != sum(lengths) + len(drafts):
        raise ValueError(
            f"expected logits [{sum(lengths) + len(drafts)}, V] for {lengths} draft tokens and one more each, got "
            f"{list(logits.shape)}"
        )
