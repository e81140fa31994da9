"""The central test: each technique can be switched off, and no combination of them changes a token.

Every slot that no sequence may read holds NaN, before every step: what was never written, what was freed and is not
kept for a prefix, and the rest of the last block. A stray read then shows in the output.
"""

import itertools
import math

import pytest
import torch

from servelab.cache import KVStorage
from servelab.engine import Engine, EngineConfig
from servelab.model import expand_kv_heads, skip_layers
from servelab.sampling import SamplingParams
from servelab.speculative import DraftHead, DraftModel, NGram
from servelab.trace import Draft, Hit, Preempt, Verify

BLOCK_SIZE = 4
# Two prompts begin with the same three blocks, one is another's beginning, one repeats itself, one is a single token.
SHARED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
PROMPTS = [
    [*SHARED, 9, 7, 9],
    [*SHARED, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7],
    SHARED,
    [11, 12, 13] * 7,
    [42],
    list(range(60, 97)),
    [*SHARED, 9, 7, 9],  # comes when the first of them is done
]
LENGTHS = [24, 9, 17, 30, 21, 5, 12]
PARAMS = [SamplingParams(max_tokens=length, ignore_eos=True) for length in LENGTHS]
# The longest request needs 13 blocks; drafts may take some more for a while.
AMPLE, TINY = 120, 16

SCHEDULES = {
    "static": {"scheduling": "static"},
    "continuous": {"max_num_batched_tokens": 512},
    "chunks of 1": {"max_num_batched_tokens": 1},
    "chunks of 5": {"max_num_batched_tokens": 5},
    "chunks of 16": {"max_num_batched_tokens": 16},
}
SPECULATIONS = ("none", "n-gram", "draft model", "draft head")


@pytest.fixture(scope="module")
def expected(greedy):
    """No cache, no batch, no scheduler."""
    return [greedy(prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]


def poison(engine: Engine) -> None:
    """Fill every slot that holds no token with NaN, in the target's storage and the proposer's."""
    live = torch.zeros(engine.storage.num_blocks, engine.storage.block_size, dtype=torch.bool)
    for request in engine.scheduler.running:
        if request.num_computed_tokens:
            slots = torch.tensor(engine.cache.slots(request.sample_id, 0, request.num_computed_tokens))
            live.view(-1)[slots] = True
    for block in range(engine.storage.num_blocks):
        if engine.config.kv_cache == "paged" and engine.cache.pool.is_kept(block):
            live[block] = True
    fill(engine.storage, ~live)
    draft_cache = getattr(engine.speculator.proposer, "cache", None)
    if draft_cache is not None:
        for request in engine.scheduler.running:
            first = min(engine.speculator.proposer.num_computed(request.sample_id), request.num_computed_tokens)
            behind = engine.cache.slots(request.sample_id, first, request.num_computed_tokens)
            live.view(-1)[torch.tensor(behind, dtype=torch.int64)] = False
        fill(draft_cache.storage, ~live)


def fill(storage: KVStorage, unused: torch.Tensor) -> None:
    for layer in range(storage.num_layers):
        for stored, scales in (
            (storage.keys(layer), storage.key_scales(layer)),
            (storage.values(layer), storage.value_scales(layer)),
        ):
            if storage.format == "int8":
                scales[unused] = math.nan
            else:  # 0x7f is NaN in both FP8 formats
                stored[unused] = math.nan if storage.format == "auto" else 0x7F


def run(engine: Engine, prompts=PROMPTS, params=PARAMS) -> list[list[int]]:
    ids = [engine.add_request(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    final = {}
    for _ in range(3000):
        poison(engine)
        for output in engine.step():
            if output.finish_reason is not None:
                assert output.finish_reason == "length"
                final[output.request_id] = output.token_ids
        engine.cache.check_integrity()
        if not engine.has_unfinished():
            break
    assert engine.cache.num_free == engine.storage.num_blocks
    return [final[request_id] for request_id in ids]


def events(engine: Engine, kind: type) -> int:
    return sum(isinstance(event, kind) for step in engine.trace.steps for event in step.events)


@pytest.mark.parametrize("speculating", SPECULATIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_technique_changes_a_token(toy_model, speculation, expected, schedule, speculating):
    for prefix_caching, num_blocks, attention in itertools.product((True, False), (AMPLE, TINY), ("naive", "flash")):
        engine = Engine(
            toy_model,
            EngineConfig(
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                max_num_seqs=4,
                prefix_caching=prefix_caching,
                attention=attention,
                speculative=speculation(speculating, k=3),
                **SCHEDULES[schedule],
            ),
        )
        assert run(engine) == expected, (prefix_caching, num_blocks, attention)
        # Each switch has done what it says, or the comparison says nothing.
        # (With one token a step there is no budget for a draft, and nobody grows beside the oldest.)
        has_room = schedule != "chunks of 1"
        assert (events(engine, Preempt) > 0) == (num_blocks == TINY and has_room)
        assert (events(engine, Hit) > 0) == prefix_caching
        assert (events(engine, Verify) > 0) == (speculating != "none" and has_room)
        assert events(engine, Draft) == events(engine, Verify)


@pytest.mark.parametrize("reserve", ["max", "exact"])
@pytest.mark.parametrize("speculating", SPECULATIONS)
def test_a_contiguous_cache_changes_no_token(toy_model, speculation, expected, speculating, reserve):
    for schedule, attention in itertools.product(SCHEDULES.values(), ("naive", "flash")):
        config = EngineConfig(
            kv_cache="contiguous",
            reserve=reserve,
            block_size=BLOCK_SIZE,
            num_blocks=40,
            max_model_len=52,
            attention=attention,
            speculative=speculation(speculating, k=3),
            **schedule,
        )
        assert run(Engine(toy_model, config)) == expected


@pytest.mark.parametrize(
    "schedule",
    [
        "static",
        "chunks of 5",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("continuous", "chunks of 1", "chunks of 16")],
    ],
)
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_within_one_kv_dtype_no_technique_changes_a_token(toy_model, speculation, kv_cache_dtype, schedule):
    """Attention reads what is stored, also of the chunk that it has just written: so chunks change nothing."""

    def outputs(**config) -> list[list[int]]:
        config = {"block_size": BLOCK_SIZE, "num_blocks": AMPLE, "kv_cache_dtype": kv_cache_dtype} | config
        return run(Engine(toy_model, EngineConfig(**config)))

    alone = outputs(max_num_seqs=1, prefix_caching=False, attention="naive", max_num_batched_tokens=512)
    switches = ((True, TINY, "flash"), (False, AMPLE, "naive"))
    for speculating, (prefix_caching, num_blocks, attention) in itertools.product(SPECULATIONS, switches):
        assert alone == outputs(
            prefix_caching=prefix_caching,
            num_blocks=num_blocks,
            attention=attention,
            max_num_seqs=4,
            speculative=speculation(speculating, k=3),
            **SCHEDULES[schedule],
        ), (speculating, prefix_caching)


def test_quantization_does_change_tokens(toy_model, expected):
    """Or the test before would compare one cache with itself."""
    changed = [
        run(Engine(toy_model, EngineConfig(block_size=BLOCK_SIZE, num_blocks=AMPLE, kv_cache_dtype=dtype))) != expected
        for dtype in ("int8", "fp8_e4m3", "fp8_e5m2")
    ]
    assert any(changed)


def test_a_kv_head_for_each_query_head_changes_no_token(toy_model, expected):
    model = expand_kv_heads(toy_model)
    engine = Engine(model, EngineConfig(block_size=BLOCK_SIZE, num_blocks=AMPLE))
    assert engine.storage.bytes_per_token() == 2 * toy_model.kv_bytes_per_token
    assert run(engine) == expected


def test_a_stray_read_shows(toy_model, expected):
    """The poison works: a table that is one block too short leads attention to slots that hold NaN."""
    engine = Engine(toy_model, EngineConfig(block_size=BLOCK_SIZE, num_blocks=AMPLE, prefix_caching=False))
    block_table = engine.cache.block_table
    engine.cache.block_table = lambda request_id: [*block_table(request_id)[:-1], AMPLE - 1]
    with pytest.raises((ValueError, AssertionError)):
        assert run(engine) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"scheduling": "static"},
        {"max_num_batched_tokens": 23},
        {"num_blocks": 12, "max_num_batched_tokens": 64},
        {"kv_cache": "contiguous", "reserve": "exact", "attention": "naive"},
        {"speculative": "n-gram", "num_blocks": 12},
        {"speculative": "draft model", "max_num_batched_tokens": 40},
        {"speculative": "draft head", "attention": "naive"},
    ],
    ids=str,
)
def test_the_real_model_gives_the_same_tokens_too(smollm2, smollm2_prompts, smollm2_expected, config):
    config = {"block_size": 16, "num_blocks": 128, "max_num_seqs": 4} | config
    if "speculative" in config:
        drafters = {
            "n-gram": NGram(k=4),
            "draft model": DraftModel(skip_layers(smollm2, [*range(22)]), k=2),
            "draft head": DraftHead(k=3),
        }
        config["speculative"] = drafters[config["speculative"]]
    engine = Engine(smollm2, EngineConfig(**config))
    params = [SamplingParams(max_tokens=32, ignore_eos=True)] * len(smollm2_prompts)
    assert run(engine, smollm2_prompts, params) == smollm2_expected
    assert (events(engine, Preempt) > 0) == (config["num_blocks"] == 12)
    assert (events(engine, Verify) > 0) == ("speculative" in config)


@pytest.fixture(scope="module")
def smollm2_prompts(smollm2) -> list[list[int]]:
    system = {"role": "system", "content": "You answer briefly, in plain words, and say so when you do not know."}
    questions = (
        "What is a cache?",
        "Repeat this list twice: salt, flour, butter, eggs, milk.",
        "Write two sentences about rain.",
        "What is 12 times 12?",
        "Who keeps bees, and why?",
    )
    messages = [[system, {"role": "user", "content": question}] for question in questions]
    return [smollm2.tokenizer.encode(smollm2.tokenizer.chat(each)) for each in messages]


@pytest.fixture(scope="module")
def smollm2_expected(smollm2, smollm2_prompts) -> list[list[int]]:
    """One request at a time, nothing shared, nothing drafted, the whole prompt at once."""
    plain = Engine(smollm2, EngineConfig(num_blocks=128, max_num_seqs=1, prefix_caching=False, attention="naive"))
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    return [output.token_ids for output in plain.generate(smollm2_prompts, params)]
