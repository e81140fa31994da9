"""`Sampler`: the next tokens of all rows that caught up, from the logits of one forward pass."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from servelab.engine.request import Request
from servelab.engine.scheduler import Row
from servelab.sampling import Logprobs, TokenHistory, Verification, token_logprobs, verify
from servelab.speculative import Draft


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokens chosen for one request: those of its draft that were accepted, and one more.

    logprobs: one for each of `verification.token_ids`, empty where the request wants none.
    """

    request: Request
    draft: list[int]
    verification: Verification
    logprobs: list[Logprobs]


class Sampler:
    """Each request chooses by its own parameters, with its own generator, and sees no other row.

    end_token_ids: the model's own end tokens.
    """

    def __init__(self, end_token_ids: Collection[int]) -> None:
        self.end_token_ids = end_token_ids

    def choose(self, rows: Sequence[Row], drafts: Sequence[Draft], logits: Tensor) -> list[Choice]:
        """Choose for every row that catches up, in their order; a prompt with several answers chooses for each of them.

        drafts: one for each row. logits: [N, V] as `Forward` has them. The requests are left as they are, but for
        their generators.
        """
        requests: list[Request] = []
        chosen_drafts: list[Draft] = []
        places: list[int] = []  # of each request's logits
        start = 0
        for row, draft in zip(rows, drafts, strict=True):
            if row.num_tokens < row.request.num_uncomputed_tokens:
                continue
            stop = start + 1 + len(draft.token_ids)
            for request in (row.request, *row.request.unborn):
                requests.append(request)
                chosen_drafts.append(draft)
                places += range(start, stop)
            start = stop
        if len(places) > start:
            logits = logits[places]
        verifications = self._verify(requests, chosen_drafts, logits)
        logprobs = _logprobs(requests, chosen_drafts, verifications, logits)
        return [
            Choice(request, draft.token_ids, verification, row_logprobs)
            for request, draft, verification, row_logprobs in zip(
                requests, chosen_drafts, verifications, logprobs, strict=True
            )
        ]

    def _verify(self, requests: Sequence[Request], drafts: Sequence[Draft], logits: Tensor) -> list[Verification]:
        if not requests:
            return []
        params = [request.params for request in requests]
        histories = None
        if any(row_params.needs_history for row_params in params):
            histories = [TokenHistory(request.prompt_token_ids, request.output_token_ids) for request in requests]
        return verify(
            logits,
            [draft.token_ids for draft in drafts],
            [draft.probs for draft in drafts],
            params,
            [request.generator for request in requests],
            histories,
            self.end_token_ids,
        )


def _logprobs(
    requests: Sequence[Request], drafts: Sequence[Draft], verifications: Sequence[Verification], logits: Tensor
) -> list[list[Logprobs]]:
    """Of the model's own distribution, for those who ask. logits: [N, V], not processed."""
    found: list[list[Logprobs]] = []
    start = 0
    for request, draft, verification in zip(requests, drafts, verifications, strict=True):
        token_ids, n = verification.token_ids, request.params.logprobs
        rows = logits[start : start + len(token_ids)]
        found.append([] if n is None else token_logprobs(rows, token_ids, n))
        start += 1 + len(draft.token_ids)
    return found
