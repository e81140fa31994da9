"""Whole decoder layers at once, and how their weights are handed to the kernel that runs them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from servelab.ops.attention import CachedAttention


class LinearWeights(ctypes.Structure):
    """Panels (`servelab.ops.panel`) with numbers of `width` bytes, and a float32 bias or 0. Addresses."""

    _fields_ = [("panels", ctypes.c_int64), ("width", ctypes.c_int64), ("bias", ctypes.c_int64)]


class LayerWeights(ctypes.Structure):
    """A decoder layer of the Llama family: addresses of float32 norm weights (0 where there is none), and products."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("attention_norm", "q_norm", "k_norm", "feed_forward_norm")),
        *((name, LinearWeights) for name in ("qkv", "output", "gate_and_up", "down")),
    ]


class HeadWeights(ctypes.Structure):
    """What a draft head (`servelab.speculative.head`) has around its layers: float32 norms, and matrices.

    embedding: [V, E], fuse: [E, 2E], rows: [Vd, E] of the target's output.
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("hidden_norm", "embedding_norm", "norm")),
        *((name, LinearWeights) for name in ("embedding", "fuse", "rows")),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Layers that are run at once.

    weights, indices: of each layer, and its number in the KV cache. num_heads: H. inner_size: I, of the feed-forward.
    """

    weights: "ctypes.Array[LayerWeights]"
    indices: Sequence[int]
    num_heads: int
    inner_size: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class HeadResult:
    """Of each sequence's last token: hidden [B, E], logits [B, Vd], the column of the highest, and its probability.

    A row whose highest logit is not finite has NaN for a probability, and any column.
    """

    hidden: Tensor
    logits: Tensor
    best: list[int]
    peaks: list[float]


def run_layers(x: Tensor, layers: Layers, cos: Tensor, sin: Tensor, attention: CachedAttention) -> Tensor:
    """Run x [T, E], float32 on the CPU, through layers, and return the new [T, E]; x is left as it is.

    cos, sin: [T, 1, D] of `rotary_tables`. attention: one that `CachedAttention.fits`.
    """
    from servelab.ops.compiled import forward

    assert attention.compiled is not None
    return forward.run_layers(x, layers, cos, sin, attention.compiled)


def run_head(
    hidden: Tensor,
    token_ids: Sequence[int],
    positions: Sequence[int],
    last: Sequence[int],
    weights: HeadWeights,
    layers: Layers,
    vocabulary_size: int,
    cos: Tensor,
    sin: Tensor,
    attention: CachedAttention,
) -> HeadResult:
    """A draft head's whole pass in one go, as far as the choice of the most likely token.

    hidden: [T, E] float32, contiguous, the state before each token. token_ids, positions: of T tokens.
    last: the row of each sequence's last token, B in all. vocabulary_size: Vd.
    cos, sin: [longest, 1, D] of all positions. attention: one that `CachedAttention.fits`.
    """
    from servelab.ops.compiled import forward

    assert attention.compiled is not None
    return forward.run_head(
        hidden, token_ids, positions, last, weights, layers, vocabulary_size, cos, sin, attention.compiled
    )
