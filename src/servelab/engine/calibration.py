"""`calibrate_kv_scales`: static scales for an FP8 cache, from what the model's keys and values look like.

A float of 8 bits has a range of its own: what lies beyond is clamped. E4M3 reaches 448; keys with outlier channels
may not. Each layer and head is scaled so that the largest value seen just fits. (E5M2 reaches 57,344, and its
precision does not depend on the scale.)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from servelab.cache import KVScales
from servelab.engine.admission import check_prompt
from servelab.model import Model
from servelab.ops import PackedCausalAttention

E4M3_MAX = 448.0


class _Range:
    """Attention that remembers the largest magnitude of each layer's and head's keys and values, [L, G]."""

    def __init__(self, model: Model) -> None:
        shape = (model.config.num_layers, model.config.num_kv_heads)
        self.keys = torch.zeros(shape, device=model.device)
        self.values = torch.zeros(shape, device=model.device)
        self.attention = PackedCausalAttention([1])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for seen, states in ((self.keys, k), (self.values, v)):
            torch.maximum(seen[layer], states.abs().amax(dim=(0, 2)).float(), out=seen[layer])
        return self.attention(layer, q, k, v)


def calibrate_kv_scales(model: Model, prompts: Sequence[str | list[int]]) -> KVScales:
    """Run the prompts and return the scales with which none of their keys and values is clamped, for `EngineConfig`.

    prompts: texts or token ids, like those to be served; what is larger in a later text is clamped.
    Raises ValueError without a prompt, and for one that is empty or longer than the model's context.
    """
    if not isinstance(prompts, (list, tuple)) or not prompts:
        raise ValueError(f"expected a list of at least one prompt, got {prompts!r:.60}")
    seen = _Range(model)
    for token_ids in [check_prompt(prompt, model) for prompt in prompts]:
        seen.attention = PackedCausalAttention([len(token_ids)])
        model.hidden(token_ids, range(len(token_ids)), seen)
    return KVScales(*[_scales(largest) for largest in (seen.keys, seen.values)])


def _scales(largest: Tensor) -> Tensor:
    """[L, G] float32. A head that is 0 throughout has no range to fit; 1 keeps its zeros."""
    # Of a largest value near the smallest float32 the quotient would be 0, which divides nothing.
    scales = (largest / E4M3_MAX).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(largest > 0, scales, torch.ones_like(largest))
