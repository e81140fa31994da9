"""`process_logits`: what a request's parameters do to its logits before a token is chosen.

In this order, each on the result of the one before:

1. `logit_bias`: added.
2. `min_tokens`: -inf for the end tokens and the stop tokens until so many tokens are output.
3. `repetition_penalty`: each token of prompt and output once; a positive logit is divided by it, a negative one
   multiplied (Keskar et al., CTRL, 2019).
4. `presence_penalty` and `frequency_penalty`: logit - presence - frequency * count, for the tokens of the output.

After them comes the choice: the highest logit, or temperature, `min_p`, `top_k`, `top_p` (`distribution.py`).
"""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from servelab.sampling.history import TokenHistory
from servelab.sampling.params import SamplingParams


def process_logits(
    logits: Tensor,
    params: Sequence[SamplingParams],
    histories: Sequence[TokenHistory] | None,
    end_token_ids: Collection[int] = (),
) -> Tensor:
    """Apply biases, the minimum length and the penalties; the very same tensor where no row asks for any.

    logits: [N, V] float, not changed. params, histories: one for each row; histories may be None while no row needs
    one. end_token_ids: the model's own end tokens; a request that ignores them may choose them at any time.
    Raises ValueError for lists of other lengths, a history that is missing, or a token outside of the vocabulary.
    """
    if logits.dim() != 2 or len(params) != len(logits) or (histories is not None and len(histories) != len(logits)):
        raise ValueError(
            f"expected logits [N, V] with N params and N histories or None, got logits {list(logits.shape)}, "
            f"{len(params)} params and {'None' if histories is None else len(histories)} histories"
        )
    rows = [row for row, row_params in enumerate(params) if row_params.changes_logits]
    if not rows:
        return logits
    processed = logits.clone()
    for row in rows:
        if histories is not None:
            _process_row(processed[row], params[row], histories[row], end_token_ids)
        elif params[row].needs_history:
            raise ValueError(f"expected a history for row {row}, whose params depend on the tokens so far, got None")
        else:
            _process_row(processed[row], params[row], TokenHistory((), ()), end_token_ids)
    return processed


def _process_row(row: Tensor, params: SamplingParams, history: TokenHistory, end_token_ids: Collection[int]) -> None:
    """Change one row [V] in place."""
    if params.logit_bias:
        row[_ids(params.logit_bias, row)] += torch.tensor(
            list(params.logit_bias.values()), dtype=row.dtype, device=row.device
        )
    if len(history.output_token_ids) < params.min_tokens:
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else end_token_ids)]
        row[_ids(ends, row)] = -torch.inf
    if params.repetition_penalty != 1:
        # A token that came twice is read and written twice, with the same value.
        ids = _ids([*history.prompt_token_ids, *history.output_token_ids], row)
        seen = row[ids]
        row[ids] = torch.where(seen < 0, seen * params.repetition_penalty, seen / params.repetition_penalty)
    if params.presence_penalty != 0 or params.frequency_penalty != 0:
        counts = Counter(history.output_token_ids)
        penalties = [params.presence_penalty + params.frequency_penalty * count for count in counts.values()]
        row[_ids(counts, row)] -= torch.tensor(penalties, dtype=row.dtype, device=row.device)


def _ids(token_ids: Collection[int], row: Tensor) -> Tensor:
    """The ids as an index into the row, int64. Raises ValueError for one outside of it: -1 would count from its end."""
    ids = np.fromiter(token_ids, dtype=np.int64, count=len(token_ids))
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(row):
        raise ValueError(f"expected token ids in 0..{len(row) - 1}, got {ids.min()}..{ids.max()}")
    return torch.from_numpy(ids).to(row.device)
