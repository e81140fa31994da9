"""`token_logprobs`: how likely the model itself held the chosen tokens, and the most likely ones beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from servelab.sampling.order import first


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of the model's own probabilities: at temperature 1, before biases, penalties and filters.

    token_id, logprob: the chosen token. top_token_ids, top_logprobs: the most likely tokens, in descending order,
    among equals the lowest id first; the chosen one is among them only if it is so likely.
    """

    token_id: int
    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def token_logprobs(logits: Tensor, token_ids: Sequence[int], n: int | Sequence[int]) -> list[Logprobs]:
    """The log-probability of one token for each row, and the `n` most likely ones.

    logits: [N, V] as the model gave them; token_ids: N chosen tokens; n: how many of the most likely tokens, for all
    or for each row; all V where it is larger. Raises ValueError for other lengths, or ids outside of the vocabulary.
    """
    counts = [n] * len(token_ids) if isinstance(n, int) else list(n)
    if logits.dim() != 2 or not len(logits) == len(token_ids) == len(counts) or any(count < 0 for count in counts):
        raise ValueError(
            f"expected logits [N, V], N token_ids and n >= 0 for all or each of them, got logits "
            f"{list(logits.shape)}, {len(token_ids)} token_ids and n {n}"
        )
    vocab_size = logits.shape[1]
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"expected token_ids in 0..{vocab_size - 1}, got {token_id}")
    logprobs = []
    for row, token_id, count in zip(logits, token_ids, counts, strict=True):
        normaliser = torch.logsumexp(row, dim=-1)
        ids = _most_likely(row, min(count, vocab_size))
        logprobs.append(
            Logprobs(
                token_id=token_id,
                logprob=float(row[token_id] - normaliser),
                top_token_ids=tuple(ids.tolist()),
                top_logprobs=tuple((row[ids] - normaliser).tolist()),
            )
        )
    return logprobs


def _most_likely(row: Tensor, n: int) -> Tensor:
    """The first `n` tokens of a row in their order, int64 [n]. row: [V]."""
    if not n:
        return torch.empty(0, dtype=torch.int64, device=row.device)
    ids = first(row, n)
    return ids[row[ids].sort(descending=True, stable=True).indices]
