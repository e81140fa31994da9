"""`calibrate_kv_scales`, and the engine with keys and values in 8 bits."""

import pytest
import torch

from servelab.cache import KVScales
from servelab.engine import Engine, EngineConfig, calibrate_kv_scales
from servelab.kernels import dequantize_kv, quantize_kv
from servelab.sampling import SamplingParams

PROMPTS = [[position * 7 % 250 + 1 for position in range(length)] for length in (30, 9, 1)]
FORMATS = ["int8", "fp8_e4m3", "fp8_e5m2"]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def test_the_largest_value_seen_just_fits(make_engine, toy_model):
    """What the cache stores in the model's own dtype, divided by the scales, reaches 448 and not more."""
    scales = calibrate_kv_scales(toy_model, PROMPTS)
    assert scales.keys.shape == scales.values.shape == (2, 2)
    engine = make_engine(prefix_caching=False, num_blocks=20)
    for layer in range(2):
        engine.storage.keys(layer).zero_()
        engine.storage.values(layer).zero_()
    engine.generate(PROMPTS, until(1))
    for layer in range(2):
        for stored, scale in ((engine.storage.keys(layer), scales.keys), (engine.storage.values(layer), scales.values)):
            largest = stored.abs().amax(dim=(0, 1, 3))
            torch.testing.assert_close(largest / scale[layer], torch.full((2,), 448.0), rtol=1e-4, atol=0)


def test_a_head_without_values_keeps_the_scale_1(plain_model):
    plain_model.network.layers[0].attention.qkv.weight[-8:] = 0  # the values of the last head
    scales = calibrate_kv_scales(plain_model, PROMPTS)
    assert float(scales.values[0, 1]) == 1.0
    assert float(scales.values[0, 0]) != 1.0


@pytest.mark.parametrize("largest", [1e-45, 3e-43, 1e-38])
def test_a_head_with_hardly_a_value_gets_a_scale_that_divides(toy_model, monkeypatch, largest):
    """A 448th of the smallest float32 is 0."""
    hidden = type(toy_model).hidden

    def tiny(model, token_ids, positions, attention):
        found = hidden(model, token_ids, positions, attention)
        attention.keys[0, 1] = largest
        return found

    monkeypatch.setattr(type(toy_model), "hidden", tiny)
    scales = calibrate_kv_scales(toy_model, PROMPTS)
    assert 0 < float(scales.keys[0, 1]) < 1e-37
    codes, _ = quantize_kv(torch.full((1, 1), largest), "fp8_e4m3", scales.keys[0, 1])
    assert dequantize_kv(codes, scales.keys[0, 1], "fp8_e4m3").isfinite().all()


@pytest.mark.parametrize("prompts", [[], None, "text", [[]], [""], [[1] * 513]])
def test_without_a_prompt_that_can_be_run_there_is_nothing_to_calibrate(toy_model, prompts):
    with pytest.raises(ValueError, match="expected"):
        calibrate_kv_scales(toy_model, prompts)


def test_an_empty_text_is_no_prompt_whatever_the_tokenizer_puts_before_it(starting_model):
    with pytest.raises(ValueError, match="expected a prompt of at least 1 token, got ''"):
        calibrate_kv_scales(starting_model, [""])


def test_texts_are_taken_too(toy_model):
    expected = calibrate_kv_scales(toy_model, [list(b"a text")])
    assert torch.equal(calibrate_kv_scales(toy_model, ["a text"]).keys, expected.keys)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kv_cache", ["paged", "contiguous"])
def test_within_a_format_nothing_changes_a_token(make_engine, drain, format, kv_cache):
    """Chunks, batches, preemption, forks and the prefix cache: attention always reads what is stored."""
    expected = [make_engine(kv_cache_dtype=format).generate([prompt], until(8))[0].token_ids for prompt in PROMPTS]
    for config in ({}, {"num_blocks": 12}, {"max_num_batched_tokens": 4}, {"attention": "naive"}):
        engine = make_engine(kv_cache_dtype=format, kv_cache=kv_cache, reserve="exact", **config)
        for number, prompt in enumerate(PROMPTS * 2):
            engine.add_request(prompt, until(8, n=2), str(number))
        outputs = drain(engine)
        for number in range(6):
            for name in (f"{number}", f"{number}#1"):
                assert outputs[name].token_ids == expected[number % 3]


@pytest.mark.parametrize("format", FORMATS)
def test_a_quarter_of_the_bytes_holds_more_tokens(make_engine, toy_model, format):
    """Of the toy model's float32: FP8 four times as many, INT8 with a 16-bit scale for 8 numbers 3.2 times."""
    plain, small = (
        make_engine(kv_cache_bytes=2**16, kv_cache_dtype=dtype).cache.num_slots for dtype in ("auto", format)
    )
    assert small == pytest.approx(plain * (3.2 if format == "int8" else 4), rel=0.02)


def test_the_trace_tells_the_bytes_of_a_token(make_engine):
    assert make_engine(kv_cache_dtype="int8").trace.kv_bytes_per_token == 2 * 2 * 2 * (8 + 2)
    assert make_engine(kv_cache_dtype="fp8_e4m3").trace.kv_bytes_per_token == 2 * 2 * 2 * 8


def test_calibrated_scales_are_used(plain_model):
    """Values beyond 448, which FP8 would clamp, are kept by a scale of their own."""
    for layer in plain_model.network.layers:
        layer.attention.qkv.weight[48:] *= 1000  # the values
    reference = plain_model.logits(PROMPTS[0])[-1].log_softmax(-1)
    errors = []
    for scales in (None, calibrate_kv_scales(plain_model, PROMPTS)):
        engine = Engine(plain_model, EngineConfig(kv_cache_dtype="fp8_e4m3", kv_scales=scales))
        [logprobs] = engine.generate([PROMPTS[0]], until(1, logprobs=257))[0].logprobs
        by_token = dict(zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True))
        errors.append((torch.tensor([by_token[token] for token in range(257)]) - reference).abs().mean())
    assert errors[1] < errors[0] / 5


def test_scales_of_another_model_are_refused(toy_model):
    scales = KVScales(torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"expected scales \[2, 2\], got \[3, 2\]"):
        Engine(toy_model, EngineConfig(kv_cache_dtype="fp8_e5m2", kv_scales=scales))
