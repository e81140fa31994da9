"""`EngineConfig`: every field is checked when it is written down."""

import pytest
import torch

from servelab.cache import KVScales
from servelab.engine import Engine, EngineConfig
from servelab.speculative import NGram

SCALES = KVScales(torch.ones(2, 2), torch.ones(2, 2))

COUNTS = ["block_size", "num_blocks", "kv_cache_bytes", "max_model_len", "max_num_seqs", "max_num_batched_tokens"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, True, "4"])
def test_counts_are_whole_and_positive(name, value):
    with pytest.raises(ValueError, match=rf"expected {name} to be an integer >= 1, got"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", ["block_size", "max_num_seqs", "max_num_batched_tokens"])
def test_counts_that_have_no_default_by_memory_cannot_be_none(name):
    with pytest.raises(ValueError, match=rf"expected {name} to be an integer >= 1, got None"):
        EngineConfig(**{name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("scheduling", "dynamic"), ("kv_cache", "page"), ("reserve", "half")],
        *[("kv_cache_dtype", "fp8"), ("attention", "sdpa")],
    ],
)
def test_choices_are_named(name, value):
    with pytest.raises(ValueError, match=rf"expected {name} in \('.*'\), got '{value}'"):
        EngineConfig(**{name: value})


def test_the_pool_has_one_size():
    with pytest.raises(ValueError, match="expected num_blocks or kv_cache_bytes, got both: 4 and 4096"):
        EngineConfig(num_blocks=4, kv_cache_bytes=4096)


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="num_block"):
        EngineConfig(num_block=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_caching": 1}, "expected prefix_caching to be True or False, got 1"),
        (
            {"speculative": 4},
            r"expected speculative as NGram\(...\), DraftModel\(...\), DraftHead\(...\) or None, got 4",
        ),
        ({"speculative": "ngram"}, "got 'ngram'"),
        ({"kv_scales": [1.0]}, r"expected kv_scales as KVScales or None, got \[1.0\]"),
        ({"kv_scales": SCALES}, "expected kv_scales with an FP8 kv_cache_dtype only, got 'auto'"),
        (
            {"kv_scales": SCALES, "kv_cache_dtype": "int8"},
            "expected kv_scales with an FP8 kv_cache_dtype only, got 'int8'",
        ),
    ],
)
def test_options_have_their_types(options, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**options)


def test_all_that_can_be_switched(toy_model):
    """An engine takes every switch at once, and holds to it."""
    scales = KVScales(torch.full((2, 2), 0.5), torch.full((2, 2), 0.25))
    config = EngineConfig(
        num_blocks=8,
        prefix_caching=False,
        kv_cache_dtype="fp8_e4m3",
        kv_scales=scales,
        attention="naive",
        speculative=NGram(k=3),
    )
    engine = Engine(toy_model, config)
    assert not engine.cache.prefix_caching
    assert (engine.storage.format, engine.storage.dtype) == ("fp8_e4m3", torch.uint8)
    assert engine.storage.key_scales(1).tolist() == [0.5, 0.5]
    assert engine.storage.value_scales(0).tolist() == [0.25, 0.25]
    assert engine.runner.attention == "naive"
    assert engine.speculator.max_drafts == 3
