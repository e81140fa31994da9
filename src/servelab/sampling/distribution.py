"""The distribution that a token is drawn from: temperature, then `min_p`, `top_k`, `top_p`.

Each of the three keeps the first tokens of one order (highest logit first, among equals the lowest id first), so the
ones that keep by count and by ratio may be applied in either order; `top_p` counts within what they leave, as a share
of its sum. What stays is normalised.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from servelab.sampling.order import Ids, Row, argmax_rows, first, highest
from servelab.sampling.params import SamplingParams

# The nucleus of a language model is seldom larger; where it is, the whole row is sorted.
NUCLEUS_TOKENS = 1024
# Temperatures are taken within what float32 divides by. Logits that differ at all differ by more than the lower end,
# and by less than the upper, so that the one gives the most likely token and the other all tokens alike.
TEMPERATURE_RANGE = (1e-37, 1e37)


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The distribution that each row's token is drawn from, float32 [N, V]; one-hot where the row is greedy.

    logits: [N, V] float, processed (`process_logits`); params: one for each row.
    Raises ValueError when a row has no finite highest logit (NaN, +inf, or nothing allowed).
    """
    logits = logits.float()
    tokens, tops = most_likely(logits, params)
    distribution = torch.zeros_like(logits)
    for row, row_params in enumerate(params):
        if row_params.temperature == 0:
            distribution[row, tokens[row]] = 1
        elif row_params.filters_tokens:
            ids, weights = shortlist(as_row(logits[row]), tops[row], row_params)
            share = torch.from_numpy(weights / weights.sum()).to(distribution)
            distribution[row, slice(None) if ids is None else torch.from_numpy(ids)] = share
        else:
            scaled = (logits[row] - tops[row]).div_(_clamp(row_params.temperature))
            torch.softmax(scaled, dim=-1, out=distribution[row])
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


def as_row(logits: Tensor) -> Row:
    """One row [V] float32, on the memory of the tensor where that is the CPU's."""
    row: Row = logits.detach().cpu().numpy()
    return row


def shortlist(row: Row, top: float, params: SamplingParams) -> tuple[Ids | None, Row]:
    """The tokens that may be drawn and how likely each is, not normalised.

    row: logits [V]; top: the highest of them, finite; params: of a temperature above 0.
    Returns ascending ids [M], None when all V stay, and weights float32 [M], the highest of them 1.
    """
    ids = None
    if 0 < params.top_k < len(row):
        ids = first(row, params.top_k)
        row = row[ids]
    if params.min_p > 0:
        kept = np.flatnonzero(row >= top + _clamp(params.temperature) * math.log(params.min_p))
        ids, row = kept if ids is None else ids[kept], row[kept]
    weights = _weights(row, top, params.temperature)
    if params.top_p < 1:
        wanted = params.top_p * float(weights.sum())
        kept = first(row, *_nucleus(row, top, params.temperature, wanted))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _nucleus(row: Row, top: float, temperature: float, wanted: float) -> tuple[int, float]:
    """How many of the most likely tokens it takes to reach a sum of weights, and the logit of the last of them."""
    for n in (min(NUCLEUS_TOKENS, len(row)), len(row)):
        values = highest(row, n)
        sums = _weights(values, top, temperature).cumsum(dtype=np.float64)
        if sums[-1] >= wanted:
            break
    # Rounding may leave even the sum of all short of what is wanted.
    size = min(int(sums.searchsorted(wanted)) + 1, n)
    return size, float(values[size - 1])


def _weights(values: Row, top: float, temperature: float) -> Row:
    """``exp((values - top) / temperature)``: the highest is 1, so that no temperature gives inf or inf - inf."""
    with np.errstate(over="ignore"):  # a difference or a quotient of -inf is a weight of 0
        weights = values - np.float32(top)
        weights /= np.float32(_clamp(temperature))
    np.exp(weights, out=weights)
    return weights


def _clamp(temperature: float) -> float:
    return min(max(temperature, TEMPERATURE_RANGE[0]), TEMPERATURE_RANGE[1])
