"""`EngineConfig`: every field is checked when it is written down."""

import pytest

from servelab.engine import EngineConfig

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


@pytest.mark.parametrize(("name", "value"), [("scheduling", "dynamic"), ("kv_cache", "page"), ("reserve", "half")])
def test_choices_are_named(name, value):
    with pytest.raises(ValueError, match=rf"expected {name} in \('.*'\), got '{value}'"):
        EngineConfig(**{name: value})


def test_the_pool_has_one_size():
    with pytest.raises(ValueError, match="expected num_blocks or kv_cache_bytes, got both: 4 and 4096"):
        EngineConfig(num_blocks=4, kv_cache_bytes=4096)


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="num_block"):
        EngineConfig(num_block=4)
