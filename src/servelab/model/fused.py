"""`FusedLayers`: the layers of a network as one compiled pass, where their weights and the cache allow it.

The network computes the same without it, operator by operator, and bit for bit; that is what it is tested against.
"""

import ctypes
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from servelab.ops import Attention, CachedAttention, Layers, LayerWeights, Linear, LinearWeights, run_layers

NUM_NORMS = 4  # of a layer, before its four products: see `weighted_modules`


class FusedLayers:
    """layers: of `servelab.model.network`. They may be changed, packed or moved at any time: each pass looks anew."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self.layers = layers
        self.built: list[Any] = []
        self.places: list[tuple[dict[str, Any], str]] = []  # where each module of a layer is looked up
        self.modules: list[Any] = []  # what was found there
        self.hooks: list[Any] = []  # of all modules, as their dicts
        self.holders: list[dict[str, Any]] = []  # the dicts that hold the weights
        self.addresses: list[int] = []
        self.weights: ctypes.Array[LayerWeights] | None = None

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor | None:
        """The layers' result [T, E] for x [T, E], or None where it must be computed operator by operator.

        That is so on a GPU, with weights that are not packed, where a gradient or a hook wants to see what happens
        inside, and with any attention but a compiled one over a KV cache.
        """
        if not fits(attention, x) or (torch.is_grad_enabled() and x.requires_grad):
            return None
        layers = self.packed()
        return None if layers is None else run_layers(x, layers, cos, sin, attention)

    def packed(self) -> Layers | None:
        """The layers as the compiled pass reads them, or None where a weight lies otherwise."""
        if not self.is_packed():
            return None
        assert self.weights is not None
        first = self.built[0]
        return Layers(
            weights=self.weights,
            indices=[layer.attention.index for layer in self.built],
            num_heads=first.attention.num_heads[0],
            inner_size=first.feed_forward.down.in_features,
            eps=first.attention_norm.eps,
        )

    def is_packed(self) -> bool:
        """Whether all weights lie as the compiled pass reads them. Looks up where, unless they lie where they lay."""
        if self.built != list(self.layers) or [held[name] for held, name in self.places] != self.modules:
            self.find()
        if any(self.hooks):
            return False
        addresses = [held["weight"].data_ptr() for held in self.holders]
        if addresses != self.addresses:
            self.addresses = addresses
            self.weights = self.look_up()
        return self.weights is not None

    def find(self) -> None:
        """Note all modules, so that a pass sees in a few microseconds that they are still the same."""
        self.built = list(self.layers)
        every = [module for layer in self.built for module in layer.modules()]
        self.places = [(module._modules, name) for module in every for name in module._modules]
        self.modules = [held[name] for held, name in self.places]
        self.hooks = [hooks for module in every for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        weighted = [module for layer in self.built for module in weighted_modules(layer) if module is not None]
        self.holders = [module._parameters for module in weighted]
        self.addresses = []

    def look_up(self) -> ctypes.Array[LayerWeights] | None:
        """The weights of all layers, or None where one is of another kind than the kernels read."""
        found = []
        for layer in self.built:
            modules = weighted_modules(layer)
            norms, linears = modules[:NUM_NORMS], modules[NUM_NORMS:]
            if not all(norm is None or is_float32(norm.weight) for norm in norms):
                return None
            if not all(isinstance(linear, Linear) and linear.form == "panels" for linear in linears):
                return None
            found.append(LayerWeights(*map(address_of, norms), *map(linear_weights, linears)))
        return (LayerWeights * len(found))(*found)


def fits(attention: Attention, x: Tensor) -> "TypeGuard[CachedAttention]":
    """Whether whole layers can be run on x at once: see `FusedLayers.run`."""
    return type(attention) is CachedAttention and attention.fits(x)


def weighted_modules(layer: Any) -> list[Any]:
    """The modules of a layer that have weights: norms, then products. None where there is none."""
    own = layer._modules
    attention, feed_forward = own["attention"]._modules, own["feed_forward"]._modules
    return [
        *(own["attention_norm"], attention.get("q_norm"), attention.get("k_norm"), own["feed_forward_norm"]),
        *(attention["qkv"], attention["output"], feed_forward["gate_and_up"], feed_forward["down"]),
    ]


def address_of(module: Any) -> int:
    """Where a module's weight lies; 0 for a module that the network does without."""
    return 0 if module is None else int(module._parameters["weight"].data_ptr())


def linear_weights(linear: Any) -> LinearWeights:
    bias = linear.bias
    return LinearWeights(linear.weight.data_ptr(), linear.weight.element_size(), 0 if bias is None else bias.data_ptr())


def is_float32(weight: Tensor) -> bool:
    return weight.is_cpu and weight.dtype == torch.float32 and weight.is_contiguous()
