import pytest

from servelab.model import ModelConfig, UnsupportedModel
from servelab.ops import RopeScaling

LLAMA = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SCALING = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}


def read(**changes):
    return ModelConfig.from_hf({**LLAMA, **changes})


def test_what_the_file_leaves_out_is_what_transformers_assumes():
    config = read()
    assert (config.num_kv_heads, config.head_dim, config.max_context) == (4, 12, 2048)
    assert (config.rope_theta, config.rms_norm_eps, config.tie_word_embeddings) == (10_000.0, 1e-6, False)
    assert read(model_type="qwen3", num_attention_heads=32).head_dim == 128


def test_null_is_the_same_as_left_out():
    assert read(num_key_value_heads=None, rope_scaling=None, head_dim=None, eos_token_id=None) == read()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}},
    ],
    ids=["transformers 5", "transformers 4", "older"],
)
def test_rope_is_read_in_every_spelling(rope):
    config = read(**rope)
    assert (config.rope_theta, config.rope_scaling) == (5e5, RopeScaling(8.0, 1.0, 4.0, 32))


def test_bias_and_head_norm_follow_the_architecture():
    assert [read().qkv_bias, read().output_bias, read().mlp_bias, read().qk_norm] == [False] * 4
    qwen2 = read(model_type="qwen2", num_key_value_heads=2)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(model_type="qwen3", num_key_value_heads=2)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (False, False, True)
    assert read(attention_bias=True, mlp_bias=True).output_bias


def test_one_end_token_or_several():
    assert read(eos_token_id=2).eos_token_ids == (2,)
    assert read(eos_token_id=[2, 5]).eos_token_ids == (2, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mistral"}, r"expected model_type in \['llama', 'qwen2', 'qwen3'\], got 'mistral'$"),
        ({"model_type": None}, "got None"),
        ({"model_type": "x", "auto_map": {"AutoModel": "x.py"}}, r"its own code \(auto_map\) is never run"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM.*LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "expected hidden_act 'silu', got 'gelu'"),
        ({"use_sliding_window": True, "sliding_window": 512}, "got a sliding window of 512 tokens"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9}, "sliding window of 9"),
        ({"quantization_config": {"quant_method": "awq"}}, "got 'awq' quantization"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "expected rope_type 'default' or 'llama3', got 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_what_the_network_lacks_is_refused(changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "expected hidden_size in config.json"),
        ({"num_key_value_heads": 3}, "got 4 query heads and 3 KV heads"),
        ({"num_hidden_layers": 0}, "expected num_layers of at least 1, got 0"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "'low_freq_factor' among the llama3 RoPE values"),
    ],
)
def test_values_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read(**changes)


def test_a_window_that_is_not_used_is_no_obstacle():
    assert read(sliding_window=4096, use_sliding_window=False, layer_types=["full_attention"] * 2)


@pytest.mark.parametrize("name", ["llama", "llama tied", "llama with a head of its own size", "qwen2", "qwen3"])
def test_counts_every_parameter(hf_folder, name):
    _, theirs = hf_folder(name)
    assert ModelConfig.from_hf(theirs.config.to_dict()).num_parameters == theirs.num_parameters()
