"""`Engine`: what enters, how it ends, and that nothing stays behind, whatever happens on the way."""

import time

import pytest

from servelab.engine import Engine, EngineConfig
from servelab.model import Model
from servelab.model.tokenizer import ByteTokenizer
from servelab.sampling import SamplingParams
from servelab.trace import Finish, Preempt, Traffic

PROMPT = [10, 20, 30, 40, 50]
CACHES = [{"kv_cache": "paged"}, {"kv_cache": "contiguous", "reserve": "exact"}]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


BAD_REQUESTS = [
    ("", None, None, "expected a prompt of at least 1 token, got ''"),
    ([], None, None, r"expected a prompt of at least 1 token, got \[\]"),
    ("half \ud83e", None, None, r"expected a prompt of Unicode characters, got '.ud83e'"),
    (None, None, None, "expected a prompt as str or list.int., got NoneType"),
    (b"bytes", None, None, "expected a prompt as str or list.int., got bytes"),
    (7, None, None, "expected a prompt as str or list.int., got int"),
    ([1, 257], None, None, r"expected token ids as integers in 0..256, got 257 at position 1"),
    ([-1], None, None, r"expected token ids as integers in 0..256, got -1 at position 0"),
    ([1, True], None, None, r"expected token ids as integers in 0..256, got True at position 1"),
    ([1.0], None, None, r"expected token ids as integers in 0..256, got 1.0 at position 0"),
    (["a"], None, None, r"expected token ids as integers in 0..256, got 'a' at position 0"),
    ([1], {"max_tokens": 5}, None, "expected params as SamplingParams, got dict"),
    ([1], SamplingParams(stop_token_ids=(257,)), None, r"expected stop_token_ids in 0..256, got 257"),
    ([1], SamplingParams(stop_token_ids=(-1,)), None, r"expected stop_token_ids in 0..256, got -1"),
    (
        [1],
        SamplingParams(min_tokens=1, stop_token_ids=tuple(range(257))),
        None,
        r"expected a token that ends nothing before min_tokens, got 257 that all do",
    ),
    ([1], None, 5, "expected request_id as a non-empty str, got 5"),
    ([1], None, "", "expected request_id as a non-empty str, got ''"),
    ([1], None, "runs", "expected a request_id that no unfinished request has, got 'runs' again"),
    ([1] * 250, until(7), None, r"expected prompt \+ max_tokens <= 256 \(max_model_len\), got 250 prompt tokens \+ 7"),
]


@pytest.mark.parametrize(("prompt", "params", "request_id", "message"), BAD_REQUESTS)
def test_bad_input_is_refused_and_changes_nothing(make_engine, drain, greedy, prompt, params, request_id, message):
    """An empty prompt, and its neighbours: those that run beside it are untouched [vllm#7283]."""
    engine = make_engine()
    engine.add_request(PROMPT, until(6), "runs")
    engine.step()
    before = (len(engine.trace.requests), len(engine.trace.steps), engine.cache.num_free)
    with pytest.raises(ValueError, match=message):
        engine.add_request(prompt, params, request_id)
    assert (len(engine.trace.requests), len(engine.trace.steps), engine.cache.num_free) == before
    assert list(engine._requests) == ["runs"]
    assert drain(engine)["runs"].token_ids == greedy(PROMPT, 6)


def test_an_empty_text_is_refused_whatever_the_tokenizer_puts_before_it(make_engine, starting_model):
    """It asks for nothing [vllm#7283]. A text is begun with the token, and ids are taken as they are."""
    engine = make_engine(starting_model)
    for refused in (lambda: engine.add_request(""), lambda: engine.generate(["a", ""])):
        with pytest.raises(ValueError, match="expected a prompt of at least 1 token, got ''"):
            refused()
    assert engine.trace.requests == []
    engine.generate(["a", [256]], until(1))
    assert [request.prompt_token_ids for request in engine.trace.requests] == [[256, 97], [256]]


@pytest.mark.parametrize("num_prompt_tokens", [1, 40, 41, 60, 200])
def test_a_request_that_can_never_fit_is_refused_at_once(make_engine, drain, greedy, num_prompt_tokens):
    """The prompt alone, or prompt + max_tokens, larger than the whole pool of 40 slots; a small request behind it
    is served at once [vllm#35541, nano-vllm#277]."""
    engine = make_engine(num_blocks=10, max_model_len=300)
    with pytest.raises(ValueError, match=r"expected prompt \+ max_tokens <= 40 \(the slots of the KV pool\), got"):
        engine.add_request([3] * num_prompt_tokens, until(41 - min(num_prompt_tokens, 40)))
    engine.add_request(PROMPT, until(4), "small")
    assert drain(engine, max_steps=4)["small"].token_ids == greedy(PROMPT, 4)


def test_a_request_that_just_fits_is_served(make_engine, drain, greedy):
    engine = make_engine(num_blocks=10)
    engine.add_request([3] * 17, until(23), "A")
    assert drain(engine)["A"].token_ids == greedy([3] * 17, 23)


@pytest.mark.parametrize("length", [512, 513, 100_000])
def test_a_prompt_beyond_the_models_context_names_the_limit(make_engine, drain, greedy, length):
    """At once, and a small request behind it is served [llama.cpp#3969]."""
    engine = make_engine(num_blocks=400)
    started = time.perf_counter()
    with pytest.raises(
        ValueError, match=rf"expected prompt \+ max_tokens <= 512 \(max_model_len\), got {length} prompt"
    ):
        engine.add_request([1] * length, until(1))
    assert time.perf_counter() - started < 1
    engine.add_request(PROMPT, until(2), "small")
    assert drain(engine)["small"].token_ids == greedy(PROMPT, 2)


def test_a_request_may_fill_the_context_to_the_last_token(make_engine, drain):
    engine = make_engine(num_blocks=128)
    engine.add_request([1] * 500, until(12), "A")
    assert len(drain(engine)["A"].token_ids) == 12


@pytest.mark.parametrize("cache", CACHES)
def test_one_output_token(make_engine, drain, assert_empty, greedy, cache):
    """`max_tokens=1`: one token, reason "length", and every block is back [vllm#6521]."""
    engine = make_engine(**cache)
    engine.add_request(PROMPT, until(1))
    (output,) = engine.step()
    assert (output.token_ids, output.finish_reason) == (greedy(PROMPT, 1), "length")
    assert_empty(engine)


def test_an_end_token_ends_the_output_and_is_not_part_of_the_text(make_engine, drain, greedy):
    expected = greedy(PROMPT, 8)
    stop = expected[4]
    length = expected.index(stop) + 1
    engine = make_engine()
    engine.add_request(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=(stop,)), "A")
    output = drain(engine)["A"]
    assert (output.token_ids, output.finish_reason) == (expected[:length], "stop")
    assert output.text == engine.model.tokenizer.decode(expected[: length - 1])


def test_the_models_own_end_token_can_be_ignored(make_engine, drain, greedy, monkeypatch):
    expected = greedy(PROMPT, 8)
    engine = make_engine()
    monkeypatch.setattr(type(engine.model.tokenizer), "eos_token_ids", (expected[2],))
    engine.add_request(PROMPT, SamplingParams(max_tokens=8), "ends")
    engine.add_request(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True), "goes on")
    outputs = drain(engine)
    assert outputs["ends"].token_ids == expected[: expected.index(expected[2]) + 1]
    assert outputs["ends"].finish_reason == "stop"
    assert (outputs["goes on"].token_ids, outputs["goes on"].finish_reason) == (expected, "length")


def test_a_stop_token_as_the_last_allowed_one_is_a_stop(make_engine, drain, greedy):
    expected = greedy(PROMPT, 1)
    engine = make_engine()
    engine.add_request(PROMPT, SamplingParams(max_tokens=1, stop_token_ids=tuple(expected)), "A")
    assert drain(engine)["A"].finish_reason == "stop"


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("drafting", ["none", "n-gram", "draft model", "draft head"])
def test_a_client_goes_away(make_engine, speculation, assert_empty, cache, num_steps, drafting):
    """While waiting, in mid-prefill and in mid-decode: everything is free within two steps [vllm#9428]."""
    speculative = speculation(drafting, adaptive=True)
    engine = make_engine(**cache, max_num_batched_tokens=2, max_num_seqs=1, speculative=speculative)
    engine.add_request(PROMPT, until(9), "A")
    engine.add_request(PROMPT, until(9), "waits")
    for _ in range(num_steps):
        engine.step()
    engine.abort("waits")
    engine.abort("A")
    outputs = engine.step()
    assert sorted((output.request_id, output.finish_reason) for output in outputs) == [
        ("A", "abort"),
        ("waits", "abort"),
    ]
    assert_empty(engine)
    assert engine.step() == []
    assert not engine.has_unfinished()


@pytest.mark.parametrize("drafting", ["none", "n-gram", "draft model", "draft head"])
def test_a_client_goes_away_while_its_request_is_preempted(make_engine, speculation, assert_empty, greedy, drafting):
    """It keeps what it got, and holds nothing [vllm#9428]."""
    engine = make_engine(speculative=speculation(drafting))
    engine.add_request(PROMPT, until(12), "A")
    while engine._requests["A"].num_output_tokens < 3:
        engine.step()
    num_tokens = engine._requests["A"].num_output_tokens
    engine.scheduler._preempt(engine.scheduler.running[0])
    engine.abort("A")
    (output,) = engine.step()
    assert (output.token_ids, output.finish_reason) == (greedy(PROMPT, num_tokens), "abort")
    assert_empty(engine)


def test_a_client_that_goes_away_twice_is_told_once(make_engine, assert_empty):
    """Its blocks are not freed a second time [vllm#1556]."""
    engine = make_engine()
    engine.add_request(PROMPT, until(9), "A")
    engine.step()
    engine.step()
    engine.abort("A")
    engine.abort("A")
    assert engine.cache.num_free == 64
    assert [output.finish_reason for output in engine.step()] == ["abort"]
    assert_empty(engine)


def test_aborting_one_leaves_the_other_alone(make_engine, drain, greedy):
    engine = make_engine()
    engine.add_request(PROMPT, until(9), "A")
    engine.add_request(PROMPT[:3], until(9), "B")
    engine.step()
    engine.step()
    engine.abort("A")
    outputs = drain(engine)
    assert outputs["A"].token_ids == greedy(PROMPT, 2)
    assert outputs["B"].token_ids == greedy(PROMPT[:3], 9)


def test_aborting_what_is_over_or_unknown_does_nothing(make_engine, drain):
    """Freeing a request twice is a no-op: the free count stays that of distinct free blocks [vllm#1556]."""
    engine = make_engine()
    engine.add_request(PROMPT, until(2), "A")
    drain(engine)
    engine.abort("A")
    engine.abort("never seen")
    assert engine.cache.num_free == 64
    assert not engine.has_unfinished()


def test_an_id_may_be_used_again_once_its_request_is_over(make_engine, drain, greedy):
    engine = make_engine()
    for _ in range(2):
        engine.add_request(PROMPT, until(3), "A")
        assert drain(engine)["A"].token_ids == greedy(PROMPT, 3)
    assert engine.trace.index_of("A") == 1


def test_ids_are_numbers_that_nobody_took(make_engine):
    engine = make_engine()
    engine.add_request(PROMPT, request_id="1")
    assert [engine.add_request(PROMPT) for _ in range(3)] == ["0", "2", "3"]


def test_generate_keeps_the_order_of_the_prompts(make_engine, greedy, assert_empty):
    engine = make_engine(max_num_seqs=2)
    prompts = [PROMPT, "text", [1], PROMPT[:2]]
    outputs = engine.generate(prompts, [until(9), until(1), until(5), until(2)])
    assert [output.token_ids for output in outputs] == [
        greedy(PROMPT, 9),
        greedy(list(b"text"), 1),
        greedy([1], 5),
        greedy(PROMPT[:2], 2),
    ]
    assert [output.index for output in outputs] == [0, 0, 0, 0]
    assert_empty(engine)


def test_generate_of_nothing_is_nothing(make_engine):
    assert make_engine().generate([]) == []


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("one text", None, "expected a list of prompts, got str"),
        ([PROMPT, []], None, "expected a prompt of at least 1 token"),
        ([1, 2, 3], None, "expected a prompt as str or list.int., got int"),
        ([PROMPT, PROMPT], [until(1)], "expected one SamplingParams for each of 2 prompts, got 1"),
        ([PROMPT], {"max_tokens": 1}, "expected params as SamplingParams or a list of them, got dict"),
        ([PROMPT], [None, None], "expected one SamplingParams for each of 1 prompts, got 2"),
    ],
)
def test_generate_refuses_all_when_one_is_bad(make_engine, prompts, params, message, assert_empty):
    engine = make_engine()
    with pytest.raises(ValueError, match=message):
        engine.generate(prompts, params)
    assert engine.trace.requests == []
    assert_empty(engine)


def test_generate_beside_other_requests_keeps_their_outputs(make_engine, drain, greedy):
    engine = make_engine()
    engine.add_request(PROMPT, until(3), "other")
    engine.generate([PROMPT[:2]], until(8))
    assert engine.has_unfinished()
    outputs = engine.step()
    assert [output.delta_token_ids for output in outputs] == [[token] for token in greedy(PROMPT, 3)]
    assert outputs[-1].finish_reason == "length"
    assert not engine.has_unfinished()


def test_a_seeded_request_samples_the_same_alone_and_in_company(make_engine):
    params = [until(12, temperature=1.0, seed=seed) for seed in range(5)]
    prompts = [[seed + 1] * (seed + 2) for seed in range(5)]
    together = [output.token_ids for output in make_engine().generate(prompts, params)]
    alone = [make_engine().generate([p], q)[0].token_ids for p, q in zip(prompts, params, strict=True)]
    scarce = make_engine(num_blocks=8)
    few_blocks = [output.token_ids for output in scarce.generate(prompts, params)]
    assert any(isinstance(event, Preempt) for step in scarce.trace.steps for event in step.events)
    assert together == alone == few_blocks
    assert len({tuple(tokens) for tokens in together}) == 5


def test_a_tiny_temperature_is_greedy_and_does_not_disturb_its_neighbours(make_engine, greedy):
    """Temperature 1e-6 beside a greedy row [vllm#1623]."""
    params = [until(10, temperature=1e-6, seed=1), until(10), until(10, temperature=2.0, seed=2)]
    outputs = make_engine().generate([PROMPT] * 3, params)
    assert outputs[0].token_ids == outputs[1].token_ids == greedy(PROMPT, 10) != outputs[2].token_ids


def test_metrics_count_tokens_and_order_times(make_engine):
    (output,) = make_engine(num_blocks=8).generate([PROMPT], until(4))
    metrics = output.metrics
    assert (metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.num_preemptions) == (5, 4, 0)
    assert metrics.arrival_s < metrics.first_token_s < metrics.finish_s
    assert make_engine().generate([PROMPT], until(1))[0].metrics.tpot_s is None
    assert metrics.ttft_s + 3 * metrics.tpot_s == pytest.approx(metrics.finish_s - metrics.arrival_s)


def test_the_trace_names_where_it_comes_from(make_engine):
    engine = make_engine()
    engine.generate(["Hi"], until(2))
    trace = engine.trace
    assert trace.model == engine.model.name
    assert trace.machine.endswith("cores") or "," in trace.machine
    assert trace.kv_bytes_per_token == engine.model.kv_bytes_per_token == engine.storage.bytes_per_token()
    assert trace.requests[0].token_texts[:2] == ["H", "i"]
    assert len(trace.requests[0].token_texts) == 4
    assert all(step.duration_s > 0 for step in trace.steps)


def test_the_trace_tells_what_each_step_moves(make_engine, toy_model):
    """The weights once, as they are held; K and V of every token that is looked at; those of the new ones."""
    engine = make_engine()
    engine.generate([PROMPT, PROMPT[:2]], until(2))
    traffic = [event for step in engine.trace.steps for event in step.events if isinstance(event, Traffic)]
    weight_bytes = sum(weight.nbytes for weight in toy_model.network.parameters())
    token_bytes = toy_model.kv_bytes_per_token
    assert traffic == [
        Traffic(weight_bytes, 7 * token_bytes, 7 * token_bytes),
        Traffic(weight_bytes, 9 * token_bytes, 2 * token_bytes),
    ]


def test_a_trace_ends_each_request_with_its_reason(make_engine):
    engine = make_engine()
    engine.generate([PROMPT, PROMPT[:2]], until(3))
    finishes = [event for step in engine.trace.steps for event in step.events if isinstance(event, Finish)]
    assert finishes == [Finish(0, "length"), Finish(1, "length")]


@pytest.mark.parametrize("config", [{}, {"block_size": 4}, 5, "continuous"])
def test_an_engine_is_built_from_a_model_and_a_configuration(toy_model, config):
    with pytest.raises(ValueError, match="expected config as EngineConfig, got"):
        Engine(toy_model, config)
    with pytest.raises(ValueError, match="expected a Model, as load_model returns it, got"):
        Engine(config)


def test_without_a_configuration_the_defaults_hold(toy_model, monkeypatch):
    monkeypatch.setattr("servelab.engine.memory.free_bytes", lambda device: 2**16)
    engine = Engine(toy_model)
    assert engine.config == EngineConfig()
    assert engine.generate([PROMPT])[0].finish_reason == "length"


def test_an_id_is_text(make_engine):
    engine = make_engine()
    with pytest.raises(ValueError, match="expected a request_id of Unicode characters, got"):
        engine.add_request("a", request_id="\ud800")
    for request_id in (0, None, [], b"0"):
        with pytest.raises(ValueError, match="expected request_id as a str, got"):
            engine.abort(request_id)
    assert not engine.has_unfinished()


def test_an_output_that_was_not_told_yet_is_not_taken_for_another_requests(make_engine, greedy):
    """The first request has the id that the engine would give next, and its last output waits for a step."""
    engine = make_engine()
    engine.add_request([1, 2], request_id="0")
    engine.abort("0")
    [output] = engine.generate([[3, 4]], SamplingParams(max_tokens=3))
    assert (output.finish_reason, output.token_ids) == ("length", greedy([3, 4], 3))
    assert [(told.request_id, told.finish_reason) for told in engine.step()] == [("0", "abort")]


class ShortTokenizer(ByteTokenizer):
    """Knows fewer ids than the network has rows, as where the vocabulary was padded."""

    def token_text(self, token_id):
        if token_id >= 100:
            raise ValueError(f"expected a token id in 0..99, got {token_id}")
        return super().token_text(token_id)


def test_an_id_that_the_tokenizer_does_not_know_has_no_text(toy_model, make_engine, drain, greedy):
    engine = make_engine(Model("short", toy_model.config, toy_model.network, ShortTokenizer()))
    engine.add_request([65, 200], SamplingParams(max_tokens=8, ignore_eos=True))
    assert drain(engine)["0"].token_ids == greedy([65, 200], 8)
    [request] = engine.trace.requests
    assert request.token_texts[:2] == ["A", ""]
    assert any(token_id >= 100 for token_id in request.output_token_ids)
