"""Whole decoder layers at once, and how their weights are handed to the kernel that runs them."""

import ctypes
from collections.abc import Sequence

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


def run_layers(
    x: Tensor,
    weights: "ctypes.Array[LayerWeights]",
    indices: Sequence[int],
    num_heads: int,
    inner_size: int,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    attention: CachedAttention,
) -> Tensor:
    """Run x [T, E], float32 on the CPU, through layers, and return the new [T, E]; x is left as it is.

    weights, indices: of each layer, and its number in the KV cache. num_heads: H. inner_size: I, of the feed-forward.
    cos, sin: [T, 1, D] of `rotary_tables`. attention: one that `CachedAttention.fits`.
    """
    from servelab.ops.compiled import forward

    assert attention.compiled is not None
    return forward.run_layers(x, weights, indices, num_heads, inner_size, eps, cos, sin, attention.compiled)
