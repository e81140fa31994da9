"""The head's network, and the file that it is kept in."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from servelab.model import Model, ModelConfig, expand_kv_heads, random_model
from servelab.ops import PackedCausalAttention, RopeScaling
from servelab.speculative.head import (
    FORMAT,
    check_vocabulary,
    fingerprint,
    initial_network,
    load_head,
    output_rows,
    save_head,
    vocabulary_rows,
)

VOCABULARY = torch.arange(0, 257, 2)


@pytest.fixture
def path(target: Model, tmp_path: Path) -> Path:
    path = tmp_path / "heads" / "toy.safetensors"
    save_head(path, initial_network(target, seed=3), VOCABULARY, target, notes="of no worth")
    return path


def rewrite(path: Path, metadata: dict[str, str] | None = None, drop: str = "", **tensors: torch.Tensor) -> None:
    """Change a head's file."""
    with safe_open(path, "pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys() if name != drop}  # noqa: SIM118
        old = file.metadata()
    save_file({**kept, **tensors}, path, metadata={**old, **(metadata or {})})


def test_it_comes_back_as_it_was_but_for_bfloat16(path: Path, target: Model) -> None:
    head = load_head(path, target)
    assert torch.equal(head.vocabulary, VOCABULARY)
    saved = dict(initial_network(target, seed=3).named_parameters())
    assert torch.equal(head.network.fuse.dense_weight(), saved["fuse.weight"].bfloat16().float())
    assert not any(parameter.requires_grad for parameter in head.network.parameters())
    x, e, places = torch.randn(5, 32), torch.randn(5, 32), torch.arange(5)
    fresh = initial_network(target, seed=3)
    for parameter in fresh.parameters():
        parameter.data = parameter.data.bfloat16().float()
    packed = PackedCausalAttention([5])
    torch.testing.assert_close(head.network(x, e, places, packed), fresh(x, e, places, packed), atol=1e-5, rtol=1e-5)


def test_the_file_says_what_it_is(path: Path, target: Model) -> None:
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == FORMAT
    assert metadata["target"] == target.name
    assert metadata["fingerprint"] == fingerprint(target)
    assert metadata["notes"] == "of no worth"


def test_a_token_sees_nothing_behind_it(target: Model) -> None:
    network = initial_network(target)
    x, e = torch.randn(6, 32), torch.randn(6, 32)
    guessed = network(x, e, torch.arange(6), PackedCausalAttention([6]))
    x[4:], e[4:] = 9.0, -9.0
    again = network(x, e, torch.arange(6), PackedCausalAttention([6]))
    torch.testing.assert_close(guessed[:4], again[:4])
    assert not torch.allclose(guessed[4:], again[4:])


def test_every_weight_learns(target: Model) -> None:
    network = initial_network(target)
    rows = vocabulary_rows(target, VOCABULARY)
    guessed = network(torch.randn(4, 32), torch.randn(4, 32), torch.arange(4), PackedCausalAttention([4]))
    network.logits(guessed, rows).logsumexp(-1).sum().backward()
    silent = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().sum()]
    assert silent == []


def test_initial_weights_follow_the_seed(target: Model) -> None:
    first, same, other = (initial_network(target, seed).fuse.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("tied", [False, True])
def test_vocabulary_rows_give_the_targets_own_logits(tied: bool) -> None:
    model = random_model(replace(CONFIG, tie_word_embeddings=tied))
    hidden = torch.randn(3, 16)
    normalised = model.network.norm(hidden)
    torch.testing.assert_close(vocabulary_rows(model, VOCABULARY)(normalised), model.project(hidden)[:, VOCABULARY])
    assert output_rows(model, VOCABULARY).shape == (len(VOCABULARY), 16)


CONFIG = ModelConfig(
    architecture="qwen3",
    vocab_size=257,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=6,
    max_context=64,
    qkv_bias=True,
    qk_norm=True,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32),
    eos_token_ids=(256,),
)


def test_a_layer_with_bias_qk_norm_and_scaled_rope_survives_the_file(tmp_path: Path) -> None:
    model = random_model(CONFIG)
    network = initial_network(model)
    save_head(tmp_path / "h.safetensors", network, VOCABULARY, model)
    head = load_head(tmp_path / "h.safetensors", model)
    assert head.network.config == replace(CONFIG, num_layers=1)
    assert torch.equal(head.network.frequencies, network.frequencies)
    assert not network.layer.attention.qkv.bias.any()


def test_the_fingerprint_knows_the_weights_and_not_their_dtype(target: Model) -> None:
    other = random_model(target.config, seed=6)
    assert fingerprint(target) != fingerprint(other)
    for dtype in (torch.bfloat16, torch.float16):
        same = random_model(target.config, seed=5)
        same.network.bfloat16().to(dtype)
        assert fingerprint(same) == fingerprint(target)
    tuned = random_model(target.config, seed=5)
    tuned.network.layers[1].feed_forward_norm.weight += 0.05
    assert fingerprint(tuned) != fingerprint(target)


def test_a_head_fits_its_target_with_more_kv_heads(path: Path, target: Model) -> None:
    """Expanding the KV heads changes no token, and the head has its own."""
    assert load_head(path, expand_kv_heads(target)).network.config.num_kv_heads == target.config.num_kv_heads


def test_a_head_of_other_weights_is_refused(path: Path, target: Model) -> None:
    with pytest.raises(ValueError, match="trained on the weights of random-llama, got one trained on other weights"):
        load_head(path, random_model(target.config, seed=6))


def test_a_head_of_other_shapes_is_refused(path: Path) -> None:
    message = r"for random-qwen3 \(hidden size 16, vocabulary 257\), got one for random-llama \(hidden size 32"
    with pytest.raises(ValueError, match=message):
        load_head(path, random_model(CONFIG))


def test_a_missing_file_is_named(target: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a draft head .*, got no file at .*nowhere"):
        load_head(tmp_path / "nowhere.safetensors", target)


def test_a_file_that_is_cut_off_is_refused(path: Path, target: Model) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="expected a whole safetensors file"):
        load_head(path, target)


def test_other_safetensors_are_no_head(tmp_path: Path, target: Model) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"expected 'servelab draft head 1' in .*, got None"):
        load_head(tmp_path / "x.safetensors", target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "fuse.weight"}, "expected the tensors"),
        ({"more": torch.zeros(1)}, "expected the tensors"),
        ({"fuse.weight": torch.zeros(2, 2)}, r"expected fuse.weight of shape \(32, 64\) in .*, got \(2, 2\)"),
        ({"vocabulary": torch.tensor([5, 5, 300])}, "expected distinct ascending token ids"),
    ],
)
def test_a_file_with_other_tensors_is_refused(path: Path, target: Model, change: dict, message: str) -> None:
    rewrite(path, **change)
    with pytest.raises(ValueError, match=message):
        load_head(path, target)


@pytest.mark.parametrize("ids", [[], [3, 3], [4, 2], [-1, 2], [0, 257], [[1, 2]]])
def test_a_vocabulary_that_is_none_is_refused(target: Model, ids: list) -> None:
    with pytest.raises(ValueError, match=r"expected distinct ascending token ids \[Vd\] in 0..256"):
        check_vocabulary(torch.tensor(ids), target)
