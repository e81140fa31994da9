"""`token_logprobs`: how likely the model itself held the chosen tokens, and the most likely ones beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from servelab.sampling.distribution import as_row
from servelab.sampling.order import Row, first


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
    for row, token_id, count in zip(logits.float(), token_ids, counts, strict=True):
        normaliser = torch.logsumexp(row, dim=-1)
        ids = _most_likely(as_row(row), min(count, vocab_size))
        chosen, *others = (row[[token_id, *ids]] - normaliser).tolist()
        logprobs.append(Logprobs(token_id, chosen, tuple(ids), tuple(others)))
    return logprobs


def _most_likely(row: Row, n: int) -> list[int]:
    """The first `n` tokens of a row in their order. row: [V]."""
    if not n:
        return []
    ids = first(row, n)
    ordered: list[int] = ids[np.argsort(-row[ids], stable=True)].tolist()
    return ordered
