"""How the compiled linear layer holds its weight: panels of 16 rows, column by column, in 16 bit where that is exact.

    W [N, K]  ->  [ceil(N / 16), K, 16]     bfloat16: the 16 rows of a column in the order 0 8 1 9 ... 7 15
                                            float32:  in the order 0 1 2 ... 15

Read as 32-bit words, a bfloat16 column has rows 0..7 in the low halves and 8..15 in the high ones, and a bfloat16 in a
high half, with zeros below it, is the float32 of the same value. A last panel is filled with zeros.
"""

from collections.abc import Callable

import torch
from torch import Tensor

PANEL = 16
FEW = 8  # rows that are looked up one by one
PIECE = 16 * PANEL  # rows that are packed at a time


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def pack_panels(weight: Tensor, empty: Callable[[tuple[int, ...], torch.dtype], Tensor] = new_tensor) -> Tensor:
    """Panels of a float32 weight [N, K]: bfloat16 when every number of it is one already, else float32.

    empty: makes the tensor, of a shape and dtype, that they are written to. It goes piece by piece: what is needed on
    the way is small, however large the weight.
    """
    N, K = weight.shape
    exact = all(is_bfloat16(weight[start : start + PIECE]) for start in range(0, N, PIECE))
    dtype = torch.bfloat16 if exact else torch.float32
    panels = empty((-(-N // PANEL), K, PANEL), dtype)
    for start in range(0, N, PIECE):
        rows = weight[start : start + PIECE].to(dtype)
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % PANEL))
        panels[start // PANEL : start // PANEL + len(rows) // PANEL] = to_panels(rows)
    return panels


def is_bfloat16(weight: Tensor) -> bool:
    """Whether every number of a float32 tensor is one that bfloat16 has too."""
    return torch.equal(weight.to(torch.bfloat16).float(), weight)


def to_panels(rows: Tensor) -> Tensor:
    if rows.dtype == torch.bfloat16:
        return rows.view(-1, 2, PANEL // 2, rows.shape[1]).permute(0, 3, 2, 1).reshape(-1, rows.shape[1], PANEL)
    return rows.view(-1, PANEL, rows.shape[1]).transpose(1, 2).contiguous()


def from_panels(panels: Tensor, num_rows: int) -> Tensor:
    """The weight [N, K] in float32 that `panels` hold, a copy."""
    count, K, _ = panels.shape
    if panels.dtype == torch.bfloat16:
        rows = panels.view(count, K, PANEL // 2, 2).permute(0, 3, 2, 1)
    else:
        rows = panels.transpose(1, 2)
    return rows.reshape(-1, K)[:num_rows].float()


def column(row: int, dtype: torch.dtype) -> int:
    """Where a row of the weight stands within its panel."""
    place = row % PANEL
    return place % (PANEL // 2) * 2 + place // (PANEL // 2) if dtype == torch.bfloat16 else place


def panel_rows(panels: Tensor, rows: Tensor) -> Tensor:
    """Rows [R, K] of the weight in float32. rows: [R] int64; a negative one, or one past the end, is not checked."""
    if len(rows) <= FEW:  # indexing by a tensor takes longer than these
        return torch.stack([panels[row // PANEL, :, column(row, panels.dtype)] for row in rows.tolist()]).float()
    place = rows % PANEL
    if panels.dtype == torch.bfloat16:
        place = place % (PANEL // 2) * 2 + place // (PANEL // 2)
    return panels[rows // PANEL, :, place].float()
