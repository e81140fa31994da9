"""Models made from a model: one KV head for each query head, or fewer layers. What does not change is shared."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from servelab.model.config import ModelConfig
from servelab.model.model import Model
from servelab.model.network import Layer, Network
from servelab.ops import Linear


def expand_kv_heads(model: Model) -> Model:
    """The same model with as many KV heads as query heads (multi-head attention): the same tokens, a larger cache.

    Query heads h of a group of H / G read KV head ``h // (H / G)``; here each gets its own copy of that head's rows
    of K and V. Only the q, k, v projections are new; all other weights are the given model's.
    """
    config = replace(model.config, num_kv_heads=model.config.num_query_heads)
    network = share(model.network, config, range(model.config.num_layers))
    for layer in network.layers:
        assert isinstance(layer, Layer)
        layer.attention.qkv = expand_projection(layer.attention.qkv, model.config)
    return replace(model, name=f"{model.name} with {config.num_kv_heads} KV heads", config=config, network=network)


def skip_layers(model: Model, layers: Sequence[int]) -> Model:
    """The model with only these layers, in this order, sharing its weights: a draft that needs no file of its own.

    layers: ascending and distinct indices in 0..L-1, at least one. Raises ValueError otherwise.
    """
    kept, end = list(layers), model.config.num_layers
    if not kept or sorted(set(kept)) != kept or kept[0] < 0 or kept[-1] >= end:
        raise ValueError(f"expected ascending distinct layers in 0..{end - 1}, at least one, got {kept}")
    config = replace(model.config, num_layers=len(kept))
    network = share(model.network, config, kept)
    return replace(model, name=f"{model.name} with {len(kept)} of {end} layers", config=config, network=network)


def share(network: Network, config: ModelConfig, layers: Sequence[int]) -> Network:
    """A network of `config` made of the modules of another: these layers, numbered from 0 for its own KV cache."""
    with torch.device("meta"):
        shared = Network(config)
    shared.embedding, shared.norm, shared.head = network.embedding, network.norm, network.head
    shared.frequencies = network.frequencies
    for layer, index in zip(shared.layers, layers, strict=True):
        source = network.layers[index]
        assert isinstance(source, Layer)
        for name, module in source.named_children():
            if name != "attention":
                setattr(layer, name, module)
        for name, module in source.attention.named_children():
            setattr(layer.attention, name, module)
    return shared.eval()


def expand_projection(qkv: Linear, config: ModelConfig) -> Linear:
    """Repeat the rows of each KV head H / G times. config: of the model that `qkv` belongs to."""
    repeats = config.num_query_heads // config.num_kv_heads
    sizes = [heads * config.head_dim for heads in (config.num_query_heads, config.num_kv_heads, config.num_kv_heads)]

    def expand(rows: Tensor) -> Tensor:
        q, k, v = torch.split(rows, sizes)
        k, v = (
            x.reshape(-1, config.head_dim, *x.shape[1:]).repeat_interleave(repeats, 0).flatten(0, 1) for x in (k, v)
        )
        return torch.cat((q, k, v))

    with torch.device("meta"):
        expanded = Linear(qkv.in_features, 3 * sizes[0], bias=qkv.bias is not None)
    expanded.weight = nn.Parameter(expand(qkv.dense_weight().detach()), requires_grad=False)
    if qkv.bias is not None:
        expanded.bias = nn.Parameter(expand(qkv.bias.detach()), requires_grad=False)
    if qkv.form != "plain":
        expanded.pack()
    return expanded
