"""Memory arithmetic: the course's Bottleneck and Paging numbers, recomputed."""

import math

import pytest

from servelab.costs import (
    GPU_SPECS,
    MODEL_SPECS,
    blocks_needed,
    contiguous_waste,
    holes,
    kv_cache_bytes_per_token,
    kv_weight_crossover_tokens,
    paged_waste,
    requests_that_fit,
    weight_bytes,
)

SMOLLM2 = MODEL_SPECS["SmolLM2-135M"]
POOL_BYTES = 512 * 2**20


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("SmolLM2-135M", 23_040),
        ("Qwen3-0.6B", 114_688),
        ("Llama-3-8B", 131_072),
        ("Llama-3-70B", 327_680),
        ("Llama-2-7B", 524_288),
        ("DeepSeek-V3", 70_272),
    ],
)
def test_kv_bytes_per_token(model, expected):
    assert kv_cache_bytes_per_token(MODEL_SPECS[model]) == expected
    assert kv_cache_bytes_per_token(MODEL_SPECS[model], 1) * 2 == expected


def test_the_bottleneck_numbers():
    assert weight_bytes(SMOLLM2) == 269_030_016
    tokens = kv_weight_crossover_tokens(SMOLLM2)
    assert tokens == 11_676
    assert tokens * 23_040 <= weight_bytes(SMOLLM2) < (tokens + 1) * 23_040


def test_the_paging_numbers():
    assert requests_that_fit(POOL_BYTES, 23_040, 300, reserved_tokens=2_048) == 11
    assert requests_that_fit(POOL_BYTES, 23_040, 300, block_size=16) == 76
    assert requests_that_fit(POOL_BYTES, 23_040, 300) == 77


def test_the_pool_of_28_slots_by_hand():
    placed = [(0, 7), (7, 2), (9, 7), (16, 7)]
    assert holes(28, placed) == [(23, 5)]
    free = holes(28, [placed[1], placed[3]])
    assert free == [(0, 7), (9, 7), (23, 5)]
    assert sum(length for _, length in free) == 19
    assert max(length for _, length in free) == 7 < 9
    free_blocks = 28 // 4 - blocks_needed(2, 4) - blocks_needed(7, 4)
    assert blocks_needed(9, 4) == 3 <= free_blocks == 4


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_needed_at_the_boundaries(tokens, blocks):
    assert blocks_needed(tokens, 4) == blocks


def test_waste():
    assert paged_waste(300, 16) == 19 * 16 - 300 == 4
    assert paged_waste([7, 2, 8], 4) == 1 + 2 + 0
    assert contiguous_waste([300, 100], 2_048) == 1_748 + 1_948
    assert contiguous_waste(2_048, 2_048) == 0


def test_four_bit_is_half_a_byte():
    assert kv_cache_bytes_per_token(SMOLLM2, 0.5) == 5_760
    assert weight_bytes(SMOLLM2, 0.5) == 67_257_504


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: requests_that_fit(100, 1, 10, reserved_tokens=5), "at least 10 tokens, got 5"),
        (lambda: requests_that_fit(100, 1, 10, reserved_tokens=20, block_size=4), "got both"),
        (lambda: requests_that_fit(100, 0, 10), "bytes_per_token of at least 1, got 0"),
        (lambda: blocks_needed(3, 0), "block_size of at least 1, got 0"),
        (lambda: blocks_needed(-1, 4), "num_tokens of at least 0, got -1"),
        (lambda: contiguous_waste(9, 8), "at most 8 tokens, got one of 9"),
        (lambda: holes(8, [(0, 4), (3, 2)]), "do not overlap"),
        (lambda: holes(8, [(6, 4)]), "inside 0..7"),
    ],
)
def test_bad_input_names_expected_and_got(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_memory_of_a_gpu_holds_the_weights_that_it_should():
    assert weight_bytes(MODEL_SPECS["Llama-3-8B"]) < GPU_SPECS["L4"].memory_bytes
    assert weight_bytes(MODEL_SPECS["Llama-3-70B"]) > GPU_SPECS["H100 SXM"].memory_bytes
    assert weight_bytes(MODEL_SPECS["Llama-3-70B"], 1) < GPU_SPECS["H100 SXM"].memory_bytes


@pytest.mark.parametrize("value", [None, 0, -1, math.nan, math.inf, "3", []])
def test_what_are_no_bytes_tokens_or_blocks_is_refused(value):
    spec = MODEL_SPECS["SmolLM2-135M"]
    for calculate in (
        lambda: kv_cache_bytes_per_token(spec, value),
        lambda: weight_bytes(spec, value),
        lambda: kv_weight_crossover_tokens(spec, value),
        lambda: kv_weight_crossover_tokens(spec, 2, value),
        lambda: blocks_needed(4, value),
        lambda: requests_that_fit(100, value, 4),
        lambda: requests_that_fit(100, 4, value),
        lambda: paged_waste([3], value),
        lambda: contiguous_waste([0], value),
    ):
        with pytest.raises(ValueError, match=r"expected \w+ (of at least|above) [01], got"):
            calculate()
    with pytest.raises(ValueError, match="expected pool_bytes of at least 0, got -1"):
        requests_that_fit(-1, 4, 4)
    with pytest.raises(ValueError, match="expected block_size of at least 1, got 0"):
        requests_that_fit(100, 4, 4, block_size=0)
    with pytest.raises(ValueError, match="expected num_tokens of at least 0, got -1"):
        contiguous_waste(-1, 4)
