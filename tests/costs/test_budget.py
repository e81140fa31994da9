"""What a GPU's memory is for, line by line."""

import pytest

from servelab.costs import GPU_SPECS, MODEL_SPECS, ModelSpec, activation_bytes, memory_budget, weight_bytes

LLAMA_8B = MODEL_SPECS["Llama-3-8B"]


def test_every_byte_has_a_line():
    budget = memory_budget(LLAMA_8B, 24_000_000_000, usable_share=0.9)
    lines = (
        budget.unusable_bytes,
        budget.layer_bytes,
        budget.embedding_bytes,
        budget.activation_bytes,
        budget.kv_bytes,
    )
    assert sum(lines) == 24_000_000_000
    assert budget.unusable_bytes == 2_400_000_000
    assert budget.weight_bytes == weight_bytes(LLAMA_8B)
    assert budget.kv_tokens == budget.kv_bytes // 131_072
    assert budget.num_blocks(16) == budget.kv_tokens // 16


def test_eight_bit_weights_leave_their_embeddings_alone():
    full = memory_budget(LLAMA_8B, 80_000_000_000)
    half = memory_budget(LLAMA_8B, 80_000_000_000, bytes_per_parameter=1)
    assert half.embedding_bytes == full.embedding_bytes == 2 * 2 * 128_256 * 4_096
    assert half.layer_bytes * 2 == full.layer_bytes
    assert half.kv_bytes - full.kv_bytes == half.layer_bytes
    assert half.weight_bytes == weight_bytes(LLAMA_8B, 1, 2)


def test_activations_by_hand():
    """Residual and normed copy, gate and up projection, their product; and the logits of each request in float32."""
    assert activation_bytes(LLAMA_8B, 1) == 2 * (2 * 4_096 + 3 * 14_336)
    assert activation_bytes(LLAMA_8B, 7, 3) == 7 * activation_bytes(LLAMA_8B, 1) + 3 * 4 * 128_256
    assert activation_bytes(LLAMA_8B, 2, 0, 4) == 4 * activation_bytes(LLAMA_8B, 1)


def test_tied_embeddings_count_once():
    spec = MODEL_SPECS["SmolLM2-135M"]
    assert memory_budget(spec, 2_000_000_000).embedding_bytes == 2 * 49_152 * 576
    assert spec.num_embedding_parameters == 49_152 * 576


def test_what_the_driver_reports_is_not_the_datasheet():
    assert GPU_SPECS["H100 SXM"].memory_bytes == 80_000_000_000
    assert GPU_SPECS["H100 SXM"].reported_bytes == 85_520_809_984
    for spec in GPU_SPECS.values():
        assert spec.reported_bytes == pytest.approx(spec.memory_bytes, rel=0.08)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"usable_share": 0}, "usable_share above 0, at most 1, got 0"),
        ({"usable_share": 1.01}, "usable_share above 0, at most 1, got 1.01"),
        ({"usable_share": "all"}, "usable_share above 0, at most 1, got 'all'"),
        ({"memory_bytes": 0}, "memory_bytes of at least 1, got 0"),
        ({"memory_bytes": 16_000_000_000}, "room for the KV cache of a token beside Llama-3-8B"),
        ({"bytes_per_parameter": 0}, "bytes_per_parameter above 0, got 0"),
        ({"bytes_per_embedding": -1}, "bytes_per_embedding above 0, got -1"),
        ({"bytes_per_element": 0}, "bytes_per_element above 0, got 0"),
        ({"step_tokens": 0}, "step_tokens of at least 1"),
        ({"step_requests": -1}, "step_requests of at least 0"),
        ({"bytes_per_activation": 0}, "bytes_per_activation above 0"),
    ],
)
def test_what_cannot_be(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        memory_budget(LLAMA_8B, **{"memory_bytes": 24_000_000_000} | values)


def test_a_spec_that_does_not_say_how_wide_its_feed_forward_layer_is():
    spec = ModelSpec("bare", 1, 8, 1, 1, 8, 16, 1_000, 64)
    with pytest.raises(ValueError, match="expected a spec with an intermediate_size, got 'bare' with 0"):
        activation_bytes(spec, 1)
