"""The distribution that a token is drawn from: temperature, then `min_p`, `top_k`, `top_p`.

Each of the three keeps the first tokens of one order (highest logit first, among equals the lowest id first), so the
ones that keep by count and by ratio may be applied in either order; `top_p` counts within what they leave, as a share
of its sum. What stays is normalised.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from servelab.sampling.order import argmax_rows, at_least, first, highest
from servelab.sampling.params import SamplingParams

# The nucleus of a language model is seldom larger; where it is, the whole row is sorted.
NUCLEUS_TOKENS = 1024
# float32 has no normal numbers below; logits that differ at all differ by more, so that it takes the most likely token.
LOWEST_TEMPERATURE = 1e-37


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The distribution that each row's token is drawn from, float32 [N, V]; one-hot where the row is greedy.

    logits: [N, V], processed (`process_logits`); params: one for each row.
    Raises ValueError when a row has no finite highest logit (NaN, +inf, or nothing allowed).
    """
    tokens, tops = most_likely(logits, params)
    distribution = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    for row, (row_params, top) in enumerate(zip(params, tops, strict=True)):
        if row_params.temperature == 0:
            distribution[row, tokens[row]] = 1
            continue
        ids, weights = shortlist(logits[row], top, row_params)
        weights /= weights.sum(dtype=torch.float64)
        if ids is None:
            distribution[row] = weights
        else:
            distribution[row, ids] = weights
    return distribution


def most_likely(logits: Tensor, params: Sequence[SamplingParams]) -> tuple[list[int], list[float]]:
    """The greedy token of each row and its logit, after the checks that `sample` and `probabilities` share."""
    if logits.dim() != 2 or not logits.shape[1] or len(params) != len(logits):
        raise ValueError(
            f"expected logits [N, V], V >= 1, with N params, got logits {list(logits.shape)} and {len(params)} params"
        )
    tokens = argmax_rows(logits)
    tops: list[float] = logits.gather(1, tokens[:, None]).squeeze(1).tolist()
    if not all(map(math.isfinite, tops)):
        raise ValueError(f"expected a finite highest logit in every row, got {tops}")
    return tokens.tolist(), tops


def shortlist(row: Tensor, top: float, params: SamplingParams) -> tuple[Tensor | None, Tensor]:
    """The tokens that may be drawn and how likely each is, not normalised.

    row: logits [V]; top: the highest of them, finite; params: of a temperature above 0.
    Returns ascending ids int64 [M], None when all V stay, and weights float32 [M], the highest of them 1.
    """
    ids = None
    if 0 < params.top_k < len(row):
        ids = first(row, params.top_k)
        row = row[ids]
    if params.min_p > 0:
        kept = at_least(row, top + max(params.temperature, LOWEST_TEMPERATURE) * math.log(params.min_p))
        ids, row = kept if ids is None else ids[kept], row[kept]
    weights = _weights(row, top, params.temperature)
    if params.top_p < 1:
        wanted = params.top_p * float(weights.sum(dtype=torch.float64))
        kept = first(row, *_nucleus(row, top, params.temperature, wanted))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _nucleus(row: Tensor, top: float, temperature: float, wanted: float) -> tuple[int, float]:
    """How many of the most likely tokens it takes to reach a sum of weights, and the logit of the last of them."""
    for n in (min(NUCLEUS_TOKENS, len(row)), len(row)):
        values = highest(row, n)
        sums = _weights(values, top, temperature).cumsum(0, dtype=torch.float64)
        if sums[-1] >= wanted:
            break
    # Rounding may leave even the sum of all short of what is wanted.
    size = min(int(torch.searchsorted(sums, wanted)) + 1, n)
    return size, float(values[size - 1])


def _weights(values: Tensor, top: float, temperature: float) -> Tensor:
    """``exp((values - top) / temperature)``: the highest is 1, so that no temperature gives inf or inf - inf."""
    return (values - top).div_(max(temperature, LOWEST_TEMPERATURE)).exp_()
