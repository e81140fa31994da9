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

    def hidden(
        self, token_ids: Tensor | Sequence[int], positions: Tensor | Sequence[int], attention: Attention
    ) -> Tensor:
        """Zeros [T, E]."""
        return torch.zeros(len(token_ids), self.config.hidden_size)

    def project(self, hidden: Tensor) -> Tensor:
        """Zeros [N, V]."""
        return torch.zeros(len(hidden), self.config.vocab_size)


@cache
def silent_model() -> SilentModel:
    """The one silent model."""
    toy = toy_model()
    return SilentModel("silent", toy.config, toy.network, toy.tokenizer)
