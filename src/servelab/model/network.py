"""The network: a decoder of the Llama family, to be read from the top.

    tokens -> embedding -> L x [ x += attention(norm(x));  x += feed_forward(norm(x)) ] -> norm -> logits

T is the tokens of all sequences of a step, packed behind each other. Who may look at whom, and where keys and
values are kept, is the affair of the attention object that is passed in (`servelab.ops`); the network knows
neither batch nor cache. Projections that read the same input are one matrix: q, k and v, and gate and up.
"""

import torch
from torch import Tensor, nn

from servelab.model.config import ModelConfig
from servelab.model.fused import FusedLayers
from servelab.ops import (
    Arena,
    Attention,
    Linear,
    rms_norm,
    rotary_embedding,
    rotary_frequencies,
    rotary_tables,
    silu_and_mul,
)


class Network(nn.Module):
    """Token ids in, logits out."""

    frequencies: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # From an empty table: as in `Linear`, nothing is drawn that will be loaded.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embedding: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size, _weight=table)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))
        self.fused = FusedLayers(self.layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.get_parameter("embedding.weight")
        # Always float32, on the CPU until the network moves: part of the definition, not of the weights.
        with torch.device("cpu"):
            frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of weights as they count: a packed weight may be held in fewer bits."""
        return self.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    def pack(self, arena: Arena | None = None) -> None:
        """Lay the weights out for inference on this machine (`Linear.pack`); a tied head is then the embedding too."""
        arena = arena or self.make_arena()
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(arena)
        if self.config.tie_word_embeddings and self.head.form == "panels":
            self.embedding = TiedEmbedding(self.head)

    def make_arena(self) -> Arena:
        """With room for all weights as they are mostly held, in 16 bit."""
        return Arena(2 * sum(parameter.numel() for parameter in self.parameters()))

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids, positions: [T] int64. Returns logits [T, V]."""
        return self.logits(self.hidden(token_ids, positions, attention))

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The hidden states after the last layer, before the final norm: [T, E]."""
        x: Tensor = self.embedding(token_ids)
        cos, sin = rotary_tables(positions, self.frequencies, x.dtype)
        fused = self.fused.run(x, cos, sin, attention)  # the loop below in one compiled pass, where that can be
        if fused is not None:
            return fused
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Final norm and projection to the vocabulary: [N, E] -> [N, V]."""
        logits: Tensor = self.head(self.norm(x))
        return logits


class TiedEmbedding(nn.Module):
    """Token ids [T] -> vectors [T, E]: rows of the head, which keeps the only copy of the weight."""

    def __init__(self, head: Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.head.rows(token_ids)


class Layer(nn.Module):
    """Attention, then feed-forward, each on the normalised input and added to it."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = AttentionLayer(config, index)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """x: [T, E]; cos, sin: [T, 1, D] of `rotary_tables`."""
        x = x + self.attention(self.attention_norm(x), cos, sin, attention)
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class AttentionLayer(nn.Module):
    """Project to heads, turn queries and keys by their position, attend, project back."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.num_heads = (config.num_query_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim
        q_size = config.num_query_heads * config.head_dim
        self.qkv = Linear(config.hidden_size, sum(self.num_heads) * config.head_dim, bias=config.qkv_bias)
        self.output = Linear(q_size, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [T, H + 2G, D]
        q, k, v = heads.split(self.num_heads, dim=1)  # [T, H, D], [T, G, D], [T, G, D]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotary_embedding(q, cos, sin), rotary_embedding(k, cos, sin)
        attended = attention(self.index, q, k, v)  # [T, H, D]
        projected: Tensor = self.output(attended.flatten(1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_and_up = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down(silu_and_mul(self.gate_and_up(x)))
        return projected


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
