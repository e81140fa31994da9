"""Bytes, FLOPs and seconds of a step."""

import math

import pytest

from servelab.costs import (
    GPU_SPECS,
    MODEL_SPECS,
    Roofline,
    arithmetic_intensity,
    decode_step_bytes,
    decode_step_flops,
    decode_step_seconds,
    prefill_bytes,
    prefill_flops,
    prefill_seconds,
    weight_bytes,
    weight_bytes_read,
)

SMOLLM2 = MODEL_SPECS["SmolLM2-135M"]
LLAMA = MODEL_SPECS["Llama-3-8B"]
H100 = GPU_SPECS["H100 SXM"]


def test_decode_alone_does_about_one_flop_per_byte():
    for name in ("SmolLM2-135M", "Llama-3-8B", "Llama-3-70B"):
        assert arithmetic_intensity(MODEL_SPECS[name]) == pytest.approx(1, abs=0.01)


def test_sixteen_long_requests_read_more_kv_than_weights():
    kv_bytes = decode_step_bytes(SMOLLM2, 16, 1_500) - weight_bytes_read(SMOLLM2)
    assert kv_bytes == 552_960_000 > weight_bytes(SMOLLM2)


def test_a_step_of_one_request_takes_the_time_of_one_read_of_the_weights():
    assert decode_step_seconds(LLAMA, H100) == pytest.approx(weight_bytes_read(LLAMA) / 3.35e12, rel=1e-4)


def test_an_untied_embedding_table_is_looked_up_and_not_read():
    assert weight_bytes_read(SMOLLM2, 16) == weight_bytes(SMOLLM2)
    table = LLAMA.vocab_size * LLAMA.hidden_size * 2
    assert weight_bytes(LLAMA) - weight_bytes_read(LLAMA, 3) == table - 3 * LLAMA.hidden_size * 2


def test_batching_shares_the_weights_until_kv_takes_over():
    short = [arithmetic_intensity(LLAMA, batch, 1) for batch in (1, 16, 256)]
    assert short[1] > 15 * short[0]
    assert short[2] > 200 * short[0]
    long_context = [arithmetic_intensity(LLAMA, batch, 100_000) for batch in (16, 256)]
    assert long_context[1] < 1.5 * long_context[0]


def test_attention_flops_by_hand():
    grown = decode_step_flops(SMOLLM2, 1, 101) - decode_step_flops(SMOLLM2, 1, 100)
    assert grown == 30 * 9 * 4 * 64


def test_prefill_adds_up_to_its_decode_steps_but_for_the_logits():
    tokens = 5
    steps = sum(decode_step_flops(SMOLLM2, 1, context) for context in range(1, tokens + 1))
    logits = 2 * SMOLLM2.vocab_size * SMOLLM2.hidden_size
    assert prefill_flops(SMOLLM2, tokens) == steps - (tokens - 1) * logits


def test_a_long_prompt_is_bound_by_arithmetic_and_one_token_by_memory():
    machine = H100.roofline()
    assert machine.bound(prefill_flops(LLAMA, 2_048) / prefill_bytes(LLAMA, 2_048)) == "compute"
    assert machine.bound(arithmetic_intensity(LLAMA)) == "memory"
    assert prefill_seconds(LLAMA, H100, 2_048) < 2_048 * decode_step_seconds(LLAMA, H100) / 50


def test_a_measured_roofline_serves_as_well():
    slow = Roofline(1e11, 1e10, "a laptop")
    assert decode_step_seconds(SMOLLM2, slow) == pytest.approx(decode_step_bytes(SMOLLM2, 1, 1) / 1e10)


def test_a_mixture_of_experts_reads_more_weights_with_more_tokens():
    spec = MODEL_SPECS["DeepSeek-V3"]
    one = weight_bytes_read(spec, 1)
    active_and_read = 2 * (spec.num_active_parameters - spec.num_lookup_parameters + spec.hidden_size)
    assert one == pytest.approx(active_and_read, rel=1e-6)
    assert one < weight_bytes_read(spec, 8) < weight_bytes_read(spec, 4_096)
    assert weight_bytes_read(spec, 4_096) < weight_bytes(spec)


def test_bad_input():
    with pytest.raises(ValueError, match="at least 1 token or request, got 0"):
        decode_step_bytes(SMOLLM2, 0, 5)
    with pytest.raises(ValueError, match="at least 1 token or request, got 0"):
        prefill_flops(SMOLLM2, 0)


@pytest.mark.parametrize("value", [None, 0, math.nan, math.inf, "3"])
def test_what_is_no_number_of_tokens_is_refused(value):
    spec = MODEL_SPECS["SmolLM2-135M"]
    for calculate in (
        lambda: decode_step_flops(spec, value, 1),
        lambda: decode_step_flops(spec, 1, value),
        lambda: decode_step_bytes(spec, 1, value),
        lambda: prefill_flops(spec, value),
    ):
        with pytest.raises(ValueError, match="expected at least 1 token or request, got"):
            calculate()
