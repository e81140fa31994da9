"""`Runner`: every way of cutting a sequence into rows gives the same logits, and reads no slot it should not."""

import pytest
import torch

from servelab.sampling import SamplingParams
from servelab.trace import Emit, Schedule

CACHES = [
    {"kv_cache": "paged"},
    {"kv_cache": "contiguous", "reserve": "exact"},
    {"kv_cache": "contiguous", "reserve": "max", "max_model_len": 60},
]
PROMPTS = [[position * 7 % 250 + 1 for position in range(length)] for length in (1, 4, 5, 8, 13, 17, 30, 2)]


@pytest.mark.parametrize("cache", CACHES, ids=["paged", "exact", "max"])
@pytest.mark.parametrize("scheduling", ["continuous", "static"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_caches_and_schedulings_give_the_same_tokens(make_engine, drain, greedy, cache, scheduling, block_size):
    engine = make_engine(
        **cache, scheduling=scheduling, block_size=block_size, num_blocks=512 // block_size, max_num_seqs=5
    )
    names = [engine.add_request(p, SamplingParams(max_tokens=20, ignore_eos=True)) for p in PROMPTS]
    outputs = drain(engine)
    assert [outputs[name].token_ids for name in names] == [greedy(p, 20) for p in PROMPTS]


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 7, 8, 9, 16, 29, 30, 31, 64])
def test_every_chunk_size_gives_the_same_tokens(make_engine, drain, greedy, budget):
    """From one token a step up, over lengths that are multiples of block and chunk and one more [vllm-ascend#5445]."""
    engine = make_engine(max_num_batched_tokens=budget)
    names = [engine.add_request(p, SamplingParams(max_tokens=6, ignore_eos=True)) for p in PROMPTS]
    outputs = drain(engine)
    assert [outputs[name].token_ids for name in names] == [greedy(p, 6) for p in PROMPTS]


@pytest.mark.parametrize("chunk", [4, 5, 8])
def test_a_last_chunk_of_one_token(make_engine, drain, greedy, chunk):
    """A prompt of chunk + 1 tokens; the first chunk emits nothing, the second one token [vllm-ascend#5445]."""
    prompt = PROMPTS[6][: chunk + 1]
    engine = make_engine(max_num_batched_tokens=chunk)
    engine.add_request(prompt, SamplingParams(max_tokens=3, ignore_eos=True), "A")
    assert engine.step() == []
    second = engine.step()
    assert [output.delta_token_ids for output in second] == [greedy(prompt, 1)]
    assert drain(engine)["A"].token_ids == greedy(prompt, 3)
    scheduled = [event.rows for step in engine.trace.steps for event in step.events if isinstance(event, Schedule)]
    assert scheduled == [((0, chunk),), ((0, 1),), ((0, 1),), ((0, 1),)]


def test_partial_chunks_emit_nothing(make_engine, drain):
    engine = make_engine(max_num_batched_tokens=7)
    engine.add_request(PROMPTS[6], SamplingParams(max_tokens=1))
    drain(engine)
    emitting = [any(isinstance(event, Emit) for event in step.events) for step in engine.trace.steps]
    assert emitting == [False] * 4 + [True]


@pytest.mark.parametrize("cache", CACHES, ids=["paged", "exact", "max"])
def test_logits_equal_those_without_a_cache(make_engine, toy_model, cache):
    """Float32 rounding only: 1e-4 on logits of order 10, where one wrong slot moves them by more than 1."""
    engine = make_engine(**cache, max_num_batched_tokens=10)
    engine.add_request(PROMPTS[4], SamplingParams(max_tokens=8), "A")
    engine.step()
    rows = engine.scheduler.schedule().rows
    assert rows[0].num_tokens == 3
    reference = toy_model.logits(PROMPTS[4])[-1:]
    forward = engine.runner.run(rows)
    torch.testing.assert_close(forward.logits, reference, rtol=1e-4, atol=1e-4)
    assert (forward.hidden.shape, forward.num_context_tokens) == ((3, toy_model.config.hidden_size), 13)
    engine.storage.keys(0)[:2] += 1.0
    assert (engine.runner.run(rows).logits - reference).abs().max() > 1e-2, "what is stored must matter"


def test_a_stray_read_of_an_unused_slot_shows(make_engine):
    """The guard of all other tests: a NaN in a slot that is read reaches the sampler, which refuses it."""
    engine = make_engine()
    engine.add_request(PROMPTS[4], SamplingParams(max_tokens=8), "A")
    engine.step()
    engine.storage.values(1)[engine.cache.block_table("A")[0], 2] = float("nan")
    with pytest.raises(ValueError, match="expected a finite highest logit in every row"):
        engine.step()


def test_scattered_blocks_give_the_same_tokens(make_engine, drain, greedy):
    """Blocks of a request that lie anywhere, in any order."""
    engine = make_engine(num_blocks=12, prefix_caching=False)
    for index, num_tokens in enumerate((1, 12, 1, 12, 1)):
        engine.add_request(PROMPTS[2], SamplingParams(max_tokens=num_tokens, ignore_eos=True), str(index))
    engine.step()
    engine.add_request(PROMPTS[5], SamplingParams(max_tokens=8, ignore_eos=True), "late")
    engine.step()
    assert engine.cache.block_table("late") == [10, 11, 1, 0, 5]
    assert drain(engine)["late"].token_ids == greedy(PROMPTS[5], 8)


@pytest.mark.parametrize("order", [[0], [3, 0], [0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [2, 5, 0, 7, 1]])
def test_greedy_does_not_depend_on_the_batch(make_engine, drain, greedy, order):
    """Alone, or in batches of 1 to 8 in any order: the same tokens in float32 [vllm#5898]."""
    engine = make_engine()
    names = [engine.add_request(PROMPTS[i], SamplingParams(max_tokens=16, ignore_eos=True)) for i in order]
    outputs = drain(engine)
    assert [outputs[name].token_ids for name in names] == [greedy(PROMPTS[i], 16) for i in order]
