"""The order of the tokens of a row: the highest logit first, and among equals the lowest id first.

Everything that picks the most likely tokens picks them by this order, so that a tie is decided in one way everywhere.
On a CPU numpy does the work, on the same memory: its argmax is six times as fast as torch's, its sort thirty times
(16 x 49,152 float32 logits on one core of an EPYC 7003: 0.1 against 0.8 ms; one row sorted: 0.24 against 7.2 ms).
"""

import numpy as np
import torch
from torch import Tensor


def argmax_rows(logits: Tensor) -> Tensor:
    """The first token of each row, int64 [N]. logits: [N, V], V >= 1; a row that holds NaN gives a place of one."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def first(row: Tensor, n: int, lowest: float | None = None) -> Tensor:
    """The first `n` tokens of a row, as ascending ids, int64 [n].

    row: [V] without NaN, 1 <= n <= V; lowest: the value of the n-th, for whoever knows it already.
    """
    if lowest is None:
        lowest = float(highest(row, n)[-1])
    ids = at_least(row, lowest)
    surplus = len(ids) - n
    if surplus:  # more tokens have the lowest value than there is room for
        ties = (row[ids] == lowest).nonzero().squeeze(-1)
        keep = torch.ones(len(ids), dtype=torch.bool, device=row.device)
        keep[ties[-surplus:]] = False
        ids = ids[keep]
    return ids


def highest(row: Tensor, n: int) -> Tensor:
    """The `n` highest values of a row in descending order, [n]. row: [V] without NaN, 1 <= n <= V."""
    if row.device.type == "cpu":
        values = row.detach().numpy()
        top = np.partition(values, len(values) - n)[len(values) - n :]
        return torch.from_numpy(np.sort(top)[::-1].copy())
    return row.topk(n).values


def at_least(row: Tensor, lowest: float) -> Tensor:
    """The tokens with this value or a higher one, as ascending ids, int64. row: [V]."""
    if row.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(row.detach().numpy() >= lowest))
    return (row >= lowest).nonzero().squeeze(-1)
