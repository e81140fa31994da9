"""The order of the tokens of a row: the highest logit first, and among equals the lowest id first.

Everything that picks the most likely tokens picks them by this order, so that a tie is decided in one way everywhere.
On a CPU numpy does the work, on the same memory: its argmax is about ten times, its sort thirty times as fast as
torch's (16 x 49,152 float32 logits on one core: 0.09 against 0.96 ms; one row sorted: 0.24 against 7.2 ms).
"""

import numpy as np
import torch
from torch import Tensor


def argmax_rows(logits: Tensor) -> Tensor:
    """The first token of each row, int64 [N]. logits: [N, V], V >= 1; a row that holds NaN gives a place of one."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def highest(row: Tensor, n: int) -> Tensor:
    """The `n` highest values of a row in descending order, [n]. row: [V], 1 <= n <= V."""
    if row.device.type == "cpu":
        values = row.detach().numpy()
        top = np.partition(values, len(values) - n)[len(values) - n :] if n < len(values) else values
        return torch.from_numpy(np.sort(top)[::-1].copy())
    return row.topk(n).values


def first(row: Tensor, n: int, lowest: Tensor) -> Tensor:
    """The first `n` tokens of a row, as ascending ids, int64 [n]. lowest: ``highest(row, n)[-1]``."""
    ids = (row >= lowest).nonzero().squeeze(-1)
    surplus = len(ids) - n
    if surplus:  # more tokens have the lowest value than there is room for
        ties = (row[ids] == lowest).nonzero().squeeze(-1)
        keep = torch.ones(len(ids), dtype=torch.bool, device=row.device)
        keep[ties[len(ties) - surplus :]] = False
        ids = ids[keep]
    return ids
