"""The distribution that a token is drawn from: temperature, then `min_p`, `top_k`, `top_p`.

Each of the three keeps the first tokens of one order (highest logit first, among equals the lowest id first), so the
ones that keep by count and by ratio may be applied in either order; `top_p` counts within what they leave, as a share
of its sum. What stays is normalised.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from servelab.sampling.order import argmax_rows, first, highest
from servelab.sampling.params import SamplingParams

# The nucleus of a language model is seldom larger; where it is, the whole row is sorted.
NUCLEUS_TOKENS = 1024


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The distribution that each row's token is drawn from, float64 [N, V]; one-hot where the row is greedy.

    logits: [N, V], processed (`process_logits`); params: one for each row.
    Raises ValueError when a row has no finite highest logit (NaN, +inf, or nothing allowed).
    """
    tokens = most_likely(logits, params)
    distribution = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    for row, row_params in enumerate(params):
        if row_params.temperature == 0:
            distribution[row, tokens[row]] = 1
            continue
        ids, weights = shortlist(logits[row], row_params)
        distribution[row, slice(None) if ids is None else ids] = weights / weights.sum()
    return distribution


def most_likely(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The greedy token of each row, int64 [N], after the checks that `sample` and `probabilities` share."""
    if logits.dim() != 2 or not logits.shape[1] or len(params) != len(logits):
        raise ValueError(
            f"expected logits [N, V], V >= 1, with N params, got logits {list(logits.shape)} and {len(params)} params"
        )
    tokens = argmax_rows(logits)
    values = logits.gather(1, tokens[:, None])
    if not torch.isfinite(values).all():
        raise ValueError(f"expected a finite highest logit in every row, got {values.squeeze(1).tolist()}")
    return tokens


def shortlist(row: Tensor, params: SamplingParams) -> tuple[Tensor | None, Tensor]:
    """The tokens that may be drawn and how likely each is, not normalised.

    row: logits [V] with a finite maximum; params: of a temperature above 0.
    Returns ascending ids int64 [M], None when all V stay, and weights float64 [M], the highest of them 1.
    """
    ids = None
    if 0 < params.top_k < len(row):
        ids = first(row, params.top_k, highest(row, params.top_k)[-1])
        row = row[ids]
    top = row.max().double()
    if params.min_p > 0:
        kept = (_scaled(row, top, params.temperature) >= math.log(params.min_p)).nonzero().squeeze(-1)
        ids, row = kept if ids is None else ids[kept], row[kept]
    weights = _scaled(row, top, params.temperature).exp_()
    if params.top_p < 1:
        wanted = params.top_p * weights.sum()
        for n in (min(NUCLEUS_TOKENS, len(row)), len(row)):
            values = highest(row, n)
            sums = _scaled(values, top, params.temperature).exp_().cumsum(0)
            if sums[-1] >= wanted:
                break
        num_kept = min(int(torch.searchsorted(sums, wanted)) + 1, n)  # rounding may leave even the whole sum short
        kept = first(row, num_kept, values[num_kept - 1])
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _scaled(values: Tensor, top: Tensor, temperature: float) -> Tensor:
    """``(values - top) / temperature``, float64: the highest is 0, so that no temperature gives inf or inf - inf.

    In float64, because 1e-45 is not a normal float32.
    """
    return (values.double() - top).div_(temperature)
