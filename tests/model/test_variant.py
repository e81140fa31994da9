"""Models made from a model: the same tokens with more KV heads, and a shorter model that shares the weights."""

import dataclasses

import pytest
import torch

from servelab.model import Network, expand_kv_heads, load_model, random_model, skip_layers
from servelab.model.variant import expand_projection
from servelab.ops import Linear, PackedCausalAttention

IDS = list(range(3, 40, 3))


def numbers(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", ["llama", "llama 3 rope", "llama with a head of its own size", "qwen2", "qwen3"])
def test_expanded_kv_heads_give_the_same_logits(hf_folder, name):
    model = load_model(hf_folder(name)[0], dtype=torch.float32, device="cpu")
    expanded = expand_kv_heads(model)
    assert (expanded.config.num_kv_heads, expanded.spec.num_kv_heads) == (4, 4)
    assert expanded.kv_bytes_per_token == model.kv_bytes_per_token * 4 // model.config.num_kv_heads
    rows = 2 * (4 - model.config.num_kv_heads) * model.config.head_dim  # of K and V, in each of two layers
    bias = rows if model.config.qkv_bias else 0
    assert expanded.num_parameters == model.num_parameters + 2 * (rows * model.config.hidden_size + bias)
    torch.testing.assert_close(expanded.logits(IDS), model.logits(IDS), rtol=1e-5, atol=1e-5)


def test_expanded_kv_heads_give_the_same_tokens(toy_model):
    ids, expanded = toy_model.tokenizer.encode("heads"), expand_kv_heads(toy_model)
    for _ in range(40):
        ids.append(int(toy_model.logits(ids)[-1].argmax()))
    assert torch.equal(expanded.logits(ids)[4:-1].argmax(-1), torch.tensor(ids[5:]))


def test_heads_dealt_out_in_turn_would_show(toy_model, monkeypatch):
    """Query heads 0 and 1 share KV head 0: repeating the heads as 0, 1, 0, 1 is the plausible mistake."""
    monkeypatch.setattr(torch.Tensor, "repeat_interleave", lambda x, n, dim: torch.cat([x] * n, dim))
    wrong = expand_kv_heads(toy_model)
    assert (wrong.logits(IDS) - toy_model.logits(IDS)).abs().max() > 0.1


def test_what_is_not_expanded_is_shared(toy_model):
    before = [parameter.clone() for parameter in toy_model.network.parameters()]
    expanded = expand_kv_heads(toy_model)
    shared = {parameter.data_ptr() for parameter in toy_model.network.parameters()}
    new = [name for name, parameter in expanded.network.named_parameters() if parameter.data_ptr() not in shared]
    assert new == [f"layers.{index}.attention.qkv.weight" for index in range(2)]
    assert all(torch.equal(*pair) for pair in zip(before, toy_model.network.parameters(), strict=True))
    assert expanded.network.embedding is toy_model.network.embedding


def test_query_heads_not_divisible_by_kv_heads_are_refused(toy_model):
    """[fla#1029]"""
    with pytest.raises(ValueError, match="got 4 query heads and 3 KV heads"):
        dataclasses.replace(toy_model.config, num_kv_heads=3)


def test_expanding_repeats_weights_and_biases(toy_model):
    """By hand: head dim 1, 4 query heads 0..3, KV heads k 4 5, v 6 7."""
    qkv = Linear(32, 8).requires_grad_(False)
    qkv.weight.copy_(torch.arange(8.0)[:, None].expand(8, 32))
    qkv.bias.copy_(torch.arange(8.0) * 10)
    expanded = expand_projection(qkv, dataclasses.replace(toy_model.config, head_dim=1))
    assert expanded.weight[:, 31].tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert expanded.bias.tolist() == [0, 10, 20, 30, 40, 40, 50, 50, 60, 60, 70, 70]


def test_skipped_layers_compute_the_others(toy_model, monkeypatch):
    monkeypatch.setattr(Network, "pack", lambda self: None)
    config = dataclasses.replace(toy_model.config, num_layers=4)
    model = random_model(config)
    part = skip_layers(model, [0, 3])
    assert part.config.num_layers == 2
    assert part.num_parameters == numbers(part.network)
    expected = Network(part.config)
    weights = model.network.state_dict()
    renamed = {name.replace("layers.3.", "layers.1."): weights[name] for name in weights if "layers.1." not in name}
    expected.load_state_dict({name: value for name, value in renamed.items() if "layers.2." not in name})
    positions = torch.arange(len(IDS))
    with torch.no_grad():
        logits = expected(torch.tensor(IDS), positions, PackedCausalAttention([len(IDS)]))
    assert torch.equal(part.logits(IDS), logits)
    assert {p.data_ptr() for p in part.network.parameters()} <= {p.data_ptr() for p in model.network.parameters()}


def test_kept_layers_are_numbered_anew_for_their_own_cache(toy_model):
    """A cache of the short model has as many layers as it has; the long model's numbers stay."""
    seen = []

    def attention(layer, q, k, v):
        seen.append(layer)
        return q

    model = random_model(dataclasses.replace(toy_model.config, num_layers=4))
    skip_layers(model, [1, 3]).hidden(IDS, range(len(IDS)), attention)
    model.hidden(IDS, range(len(IDS)), attention)
    assert seen == [0, 1, 0, 1, 2, 3]


def test_all_layers_kept_is_the_model_itself(toy_model):
    assert torch.equal(skip_layers(toy_model, range(2)).logits(IDS), toy_model.logits(IDS))


@pytest.mark.parametrize("layers", [[], [2], [-1], [1, 0], [0, 0]])
def test_layers_that_cannot_be_kept_are_refused(toy_model, layers):
    with pytest.raises(ValueError, match=r"ascending distinct layers in 0\.\.1, at least one, got"):
        skip_layers(toy_model, layers)
