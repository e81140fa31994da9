"""`Model`: a network with its weights, its tokenizer and what it costs to run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from servelab.costs import ModelSpec, kv_cache_bytes_per_token
from servelab.model.config import ModelConfig
from servelab.model.network import Network
from servelab.model.tokenizer import Tokenizer
from servelab.ops import Attention, PackedCausalAttention


@dataclass(frozen=True, slots=True)
class Model:
    """A language model that is ready to run.

    name: the catalogue's name, the hub id or the folder it came from.
    """

    name: str
    config: ModelConfig
    network: Network
    tokenizer: Tokenizer

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations; logits are float32."""
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def num_parameters(self) -> int:
        return self.config.num_parameters

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads, as they are held here: packed, often in 16 bit.

        Of an embedding table of its own a step reads a few rows, which do not count.
        """
        untied = () if self.config.tie_word_embeddings else ("embedding.weight",)
        return sum(weight.nbytes for name, weight in self.network.named_parameters() if name not in untied)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the KV cache keeps for one token in the model's dtype: K and V, all layers."""
        return kv_cache_bytes_per_token(self.spec, self.dtype.itemsize)

    @property
    def spec(self) -> ModelSpec:
        """The shapes that `servelab.costs` computes bytes and FLOPs from."""
        config = self.config
        return ModelSpec(
            name=self.name,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            num_query_heads=config.num_query_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            num_parameters=config.num_parameters,
            max_context=config.max_context,
            intermediate_size=config.intermediate_size,
            tied_embeddings=config.tie_word_embeddings,
            source="config.json",
        )

    def forward(
        self,
        token_ids: Tensor | Sequence[int],
        positions: Tensor | Sequence[int],
        attention: Attention,
        logits_rows: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """One step over T packed tokens. Returns float32 logits [N, V].

        token_ids, positions: [T]. logits_rows: [N] the tokens whose logits are wanted, by default all T.
        Raises ValueError for a token id outside the vocabulary or a position outside the context.
        """
        hidden = self.hidden(token_ids, positions, attention)
        if logits_rows is not None:
            hidden = hidden[torch.as_tensor(logits_rows, dtype=torch.int64, device=self.device)]
        return self.project(hidden)

    @torch.no_grad()
    def hidden(
        self, token_ids: Tensor | Sequence[int], positions: Tensor | Sequence[int], attention: Attention
    ) -> Tensor:
        """The hidden states [T, E] of T packed tokens after the last layer, before the final norm.

        token_ids, positions: [T]. Raises ValueError for a token id outside the vocabulary or a position outside
        the context.
        """
        ids = integers("token_ids", token_ids, self.device)
        places = integers("positions", positions, self.device)
        if ids.dim() != 1 or not len(ids) or ids.shape != places.shape:
            raise ValueError(
                f"expected token_ids [T] and positions [T] with T >= 1, "
                f"got {tuple(ids.shape)} and {tuple(places.shape)}"
            )
        check_range("token id", ids, self.config.vocab_size)
        check_range("position", places, self.config.max_context)
        return self.network.hidden(ids, places, attention)

    @torch.no_grad()
    def project(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] in float32 of hidden states [N, E]: the final norm, then a row of the head for each token.

        Most of a prefill needs none, so the rows are chosen before. Raises ValueError for another shape.
        """
        if hidden.dim() != 2 or hidden.shape[1] != self.config.hidden_size:
            raise ValueError(f"expected hidden states [N, {self.config.hidden_size}], got {tuple(hidden.shape)}")
        return self.network.logits(hidden).float()

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits [T, V] after each token of one sequence, without a cache."""
        if not isinstance(token_ids, (Sequence, Tensor)) or not len(token_ids):
            raise ValueError(f"expected token_ids [T], T at least 1, got {token_ids!r:.60}")
        attention = PackedCausalAttention([len(token_ids)])
        return self.forward(token_ids, range(len(token_ids)), attention)


def integers(name: str, values: object, device: torch.device) -> Tensor:
    """The values as an int64 tensor on `device`. Raises ValueError for what are not integers: 1.5 is not rounded."""
    try:
        tensor = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected {name} as integers [T], got {values!r:.60} ({error})") from None
    if tensor.numel() and (tensor.is_floating_point() or tensor.dtype is torch.bool):
        raise ValueError(f"expected {name} as integers [T], got {tensor.dtype}")
    return tensor.to(torch.int64)


def check_range(what: str, values: Tensor, end: int) -> None:
    """Raise ValueError unless all values lie in 0..end-1."""
    low, high = (int(value) for value in torch.aminmax(values))
    if low < 0 or high >= end:
        raise ValueError(f"expected every {what} in 0..{end - 1}, got {low if low < 0 else high}")
