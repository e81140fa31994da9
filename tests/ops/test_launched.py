"""The engine's path on a GPU, run in Triton's interpreter: the same tokens as without it, in every cache and format."""

import pytest
import torch

from servelab.engine import Engine, EngineConfig
from servelab.kernels.inspect import Worker
from servelab.model import toy_model
from servelab.ops import PackedCausalAttention, backend
from servelab.sampling import SamplingParams
from servelab.speculative import NGram

PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 10], [11, 12, 13, 14, 15, 16, 17]]
OPTIONS = {
    "paged": {},
    "tiny pool, chunks": {"num_blocks": 7, "max_num_batched_tokens": 5},
    "contiguous": {"kv_cache": "contiguous"},
    "int8": {"kv_cache_dtype": "int8"},
    "fp8_e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "contiguous int8": {"kv_cache": "contiguous", "kv_cache_dtype": "int8"},
    "speculation": {"speculative": NGram(k=3)},
    "naive": {"attention": "naive"},
}


@pytest.fixture(scope="module")
def interpreter():
    worker = Worker("interpret")
    yield worker
    worker.close()


def generate(options):
    """Tokens, and whether Triton computed."""
    config = {"block_size": 4, "max_model_len": 32, "num_blocks": 24, **options}
    engine = Engine(toy_model(), EngineConfig(**config))
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=6))
    engine.cache.check_integrity()
    return [output.token_ids for output in outputs], backend.launches(torch.zeros(1))


def uncached():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(9, heads, 16, generator=generator) for heads in (4, 2, 2))
    return PackedCausalAttention([4, 1, 4])(0, q, k, v)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_tokens(interpreter, name):
    tokens, is_launched = interpreter.call(generate, OPTIONS[name])
    assert is_launched
    assert (tokens, False) == generate(OPTIONS[name])


def test_attention_without_a_cache(interpreter):
    assert torch.allclose(interpreter.call(uncached), uncached(), atol=1e-6)
