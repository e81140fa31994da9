"""The table of models: parameter counts follow from the shapes, so a wrong shape cannot hide."""

import pytest

from servelab.costs import MODEL_SPECS, ModelSpec

DENSE = [name for name, spec in MODEL_SPECS.items() if not spec.num_experts]


@pytest.mark.parametrize("name", DENSE)
def test_parameters_follow_from_the_shapes(name):
    spec = MODEL_SPECS[name]
    hidden, head_dim = spec.hidden_size, spec.head_dim
    attention = 2 * hidden * head_dim * (spec.num_query_heads + spec.num_kv_heads)
    norms = 2 * hidden + (2 * head_dim if name.startswith("Qwen3") else 0)
    layer = attention + 3 * hidden * spec.intermediate_size + norms
    embeddings = spec.vocab_size * hidden * (1 if spec.tied_embeddings else 2)
    assert embeddings + spec.num_layers * layer + hidden == spec.num_parameters
    assert spec.num_active_parameters == spec.num_parameters


def test_deepseek_counts_its_experts():
    spec = MODEL_SPECS["DeepSeek-V3"]
    expert = 3 * 7_168 * 2_048
    assert spec.num_routed_parameters == 58 * 256 * expert
    assert spec.num_parameters - spec.num_active_parameters == 58 * (256 - 8) * expert


@pytest.mark.parametrize(
    ("name", "attention"),
    [("Llama-2-7B", "MHA"), ("Llama-3-70B", "GQA"), ("SmolLM2-135M", "GQA"), ("DeepSeek-V3", "MLA")],
)
def test_kind_of_attention(name, attention):
    assert MODEL_SPECS[name].attention == attention


def test_every_model_names_its_source():
    assert all("config.json" in spec.source for spec in MODEL_SPECS.values())


def _spec(**changes):
    shape = {
        "num_layers": 2,
        "hidden_size": 8,
        "num_query_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 2,
        "vocab_size": 64,
        "num_parameters": 1_000,
        "max_context": 32,
    }
    return ModelSpec("tiny", **(shape | changes))


def test_bad_shapes_are_refused():
    assert _spec(num_kv_heads=1).attention == "MQA"
    with pytest.raises(ValueError, match="equal groups per KV head, got 4 query heads and 3"):
        _spec(num_kv_heads=3)
    with pytest.raises(ValueError, match="num_layers of at least 1, got 0"):
        _spec(num_layers=0)
