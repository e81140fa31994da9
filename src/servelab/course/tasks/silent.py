"""A model that computes nothing: for tasks in which only lengths count."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from servelab.model import Model, toy_model
from servelab.ops import Attention


class SilentModel(Model):
    """Has the toy model's shapes and answers every step with zeros; nothing is written to the KV cache."""

    __slots__ = ()

    def forward(
        self,
        token_ids: Tensor | Sequence[int],
        positions: Tensor | Sequence[int],
        attention: Attention,
        logits_rows: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Zeros [N, V], where N is the number of rows whose logits are wanted."""
        return torch.zeros(len(token_ids if logits_rows is None else logits_rows), self.config.vocab_size)


@cache
def silent_model() -> SilentModel:
    """The one silent model."""
    toy = toy_model()
    return SilentModel("silent", toy.config, toy.network, toy.tokenizer)
