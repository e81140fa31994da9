"""The real model: greedy tokens equal those of transformers' `generate` in float32, however the engine is set."""

import pytest
import torch

from servelab.engine import Engine, EngineConfig
from servelab.model import prepare_model
from servelab.sampling import SamplingParams
from servelab.trace import Preempt

NUM_TOKENS = 128
PROMPTS = [
    "The",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "A KV cache stores the keys and values of every token, because",
    "List the planets of the solar system in order, with one fact about each of them:\n1.",
    "Dear Sir or Madam, " * 6,
    "The quick brown fox jumps over the lazy dog. " * 12,
    "To be, or not to be, that is the question: " + "whether 'tis nobler in the mind to suffer " * 5,
]

CONFIGS = {
    "paged": EngineConfig(block_size=16, num_blocks=160),
    "contiguous": EngineConfig(block_size=16, num_blocks=160, kv_cache="contiguous", reserve="exact"),
    "static": EngineConfig(block_size=16, num_blocks=160, scheduling="static", max_num_seqs=4),
    "preempting": EngineConfig(block_size=16, num_blocks=40, max_num_batched_tokens=64),
}


@pytest.fixture(scope="module")
def expected(smollm2) -> list[list[int]]:
    """What transformers generates for the 8 prompts, padded on the left to one batch, up to and with the end token."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(prepare_model("smollm2-135m", progress=False), dtype=torch.float32)
    prompts = [smollm2.tokenizer.encode(prompt) for prompt in PROMPTS]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    generated = reference.generate(ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False)
    return [up_to_end(tokens, smollm2.tokenizer.eos_token_ids) for tokens in generated[:, longest:].tolist()]


def up_to_end(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    for position, token in enumerate(tokens):
        if token in ends:
            return tokens[: position + 1]
    return tokens


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    ["paged", *[pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "paged"]],
)
def test_greedy_equals_transformers_token_for_token(smollm2, expected, name):
    """8 prompts of 1 to 121 tokens run together, up to 128 new tokens each [vllm#5898]."""
    engine = Engine(smollm2, CONFIGS[name])
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=NUM_TOKENS))
    assert [output.token_ids for output in outputs] == expected
    assert sum(len(tokens) == NUM_TOKENS for tokens in expected) >= 4, "most must run to the full length"
    preemptions = sum(isinstance(event, Preempt) for step in engine.trace.steps for event in step.events)
    assert (preemptions > 0) == (name == "preempting")
    engine.cache.check_integrity()
    assert engine.cache.request_ids == []
