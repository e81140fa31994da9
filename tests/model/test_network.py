"""Logits against transformers, for every option of the family, and proof that a wrong network would be noticed."""

import pytest
import torch

import servelab.model.network as network_module
from servelab.model import Network, load_model
from servelab.ops import AttentionBatch, CachedAttention, PackedCausalAttention

TOLERANCE = 2e-4  # logits reach 10; float32 sums in another order


def worst(folder, theirs, length=40):
    ids = torch.randint(0, 320, (length,), generator=torch.Generator().manual_seed(1))
    ours = load_model(folder, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    return (ours.logits(ids.tolist()) - expected).abs().max().item()


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "llama tied",
        "llama with a head of its own size",
        "llama 3 rope",
        "llama without grouped heads",
        "qwen2",
        "qwen3",
        "qwen3 with bias",
    ],
)
def test_logits_equal_transformers(hf_folder, name):
    assert worst(*hf_folder(name)) < TOLERANCE


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        ("rotary_embedding", lambda right: lambda x, cos, sin: right(x, cos, -sin)),
        ("rotary_embedding", lambda right: lambda x, cos, sin: x),
        ("rotary_frequencies", lambda right: lambda head_dim, theta, scaling: right(head_dim, theta, None)),
        ("rotary_frequencies", lambda right: lambda head_dim, theta, scaling: right(head_dim, 10_000.0, scaling)),
        ("rms_norm", lambda right: lambda x, weight, eps: right(x, torch.ones_like(weight), eps)),
        ("rms_norm", lambda right: lambda x, weight, eps: right(x, weight, eps + 0.01)),
        ("silu_and_mul", lambda right: lambda x: right(torch.cat(x.chunk(2, -1)[::-1], -1))),
    ],
    ids=["turned backwards", "not turned", "no scaling", "another theta", "no weight", "another eps", "swapped halves"],
)
def test_a_wrong_operator_would_show(hf_folder, monkeypatch, operator, wrong):
    monkeypatch.setattr(network_module, operator, wrong(getattr(network_module, operator)))
    assert worst(*hf_folder("llama 3 rope")) > 20 * TOLERANCE


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_a_forgotten_head_norm_would_show(hf_folder, monkeypatch, name):
    original = Network.hidden

    def hidden(self, *args):
        for layer in self.layers:
            getattr(layer.attention, name).weight.fill_(1.0)
        return original(self, *args)

    monkeypatch.setattr(Network, "hidden", hidden)
    assert worst(*hf_folder("qwen3")) > 20 * TOLERANCE


def test_a_swapped_bias_would_show(hf_folder, monkeypatch):
    original = Network.hidden

    def hidden(self, *args):
        for layer in self.layers:
            layer.attention.qkv.bias.copy_(layer.attention.qkv.bias.flip(0))
        return original(self, *args)

    monkeypatch.setattr(Network, "hidden", hidden)
    assert worst(*hf_folder("qwen2")) > 20 * TOLERANCE


class Storage:
    format = "auto"

    def __init__(self, config, num_blocks, block_size):
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.k, self.v = torch.full(shape, float("nan")), torch.full(shape, float("nan"))

    def keys(self, layer):
        return self.k[layer]

    def values(self, layer):
        return self.v[layer]

    def key_scales(self, layer):
        return None

    def value_scales(self, layer):
        return None


@pytest.mark.parametrize("chunk", [1, 2, 5, 11])
def test_chunks_through_a_cache_equal_the_whole(toy_model, chunk):
    ids = toy_model.tokenizer.encode("the whole, or a part")
    table, storage = [4, 1, 3, 0, 6], Storage(toy_model.config, 7, 4)
    whole, parts = toy_model.logits(ids), []
    for start in range(0, len(ids), chunk):
        stop = min(start + chunk, len(ids))
        slots = [table[t // 4] * 4 + t % 4 for t in range(start, stop)]
        batch = AttentionBatch([stop - start], [stop], slots, [table], block_size=4)
        parts.append(toy_model.forward(ids[start:stop], range(start, stop), CachedAttention(batch, storage)))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-4)


def test_packed_sequences_equal_single_ones(toy_model):
    first, second = toy_model.tokenizer.encode("one sequence"), toy_model.tokenizer.encode("and another")
    attention = PackedCausalAttention([len(first), len(second)])
    logits = toy_model.forward(first + second, [*range(len(first)), *range(len(second))], attention)
    expected = torch.cat([toy_model.logits(first), toy_model.logits(second)])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_chosen_rows_equal_those_of_all(toy_model):
    ids = toy_model.tokenizer.encode("rows")
    rows = toy_model.forward(ids, range(4), PackedCausalAttention([4]), logits_rows=[3, 1])
    torch.testing.assert_close(rows, toy_model.logits(ids)[[3, 1]], rtol=0, atol=1e-5)


def test_gradients_flow(toy_model):
    """Later chapters train: the network itself records gradients, only `Model.forward` does not."""
    network = Network(toy_model.config)
    logits = network(torch.arange(5), torch.arange(5), PackedCausalAttention([5]))
    logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
