"""The simulator decides as the engine does: event by event, step by step, for the same lengths."""

import dataclasses

import pytest

from servelab.costs import RequestLength, workload
from servelab.engine import Engine
from servelab.sampling import SamplingParams
from servelab.simulate import Arrival, Drafting, arrive_at_once, equal_lengths, simulate
from servelab.simulate.simulator import Simulator
from servelab.speculative import Draft as DraftTokens
from servelab.speculative import DraftModel, NGram
from servelab.trace import Draft, Preempt, Trace, Traffic, Verify

LONG_TAIL = workload(40, mean_tokens=30, max_tokens=120, seed=3)
MIXED = [
    RequestLength(7, 9),
    RequestLength(2, 1),
    RequestLength(30, 3),
    RequestLength(1, 40),
    RequestLength(16, 16),
] * 4


def plan(trace: Trace) -> list[list[object]]:
    """The events of each step, without the tokens that a draft consists of and what they weigh in probability."""

    def bare(event):
        if isinstance(event, Traffic):  # what a step reads of the weights, the engine counts as they are packed
            return dataclasses.replace(event, weight_bytes=0)
        if isinstance(event, Draft):
            return "draft", event.request, len(event.token_ids)
        if isinstance(event, Verify):
            return "verify", event.request, len(event.token_ids), event.num_accepted
        return event

    return [[bare(event) for event in step.events] for step in trace.steps]


def count(trace: Trace, kind: type) -> int:
    return sum(isinstance(event, kind) for step in trace.steps for event in step.events)


def assert_same(engine: Engine, simulator: Simulator) -> None:
    assert plan(simulator.trace) == plan(engine.trace)
    for name in ("kv_cache", "num_blocks", "block_size", "scheduling", "max_num_seqs", "kv_bytes_per_token"):
        assert getattr(simulator.trace, name) == getattr(engine.trace, name), name
    for paper, real in zip(simulator.trace.requests, engine.trace.requests, strict=True):
        lengths = (paper.request_id, paper.num_prompt_tokens, paper.num_output_tokens, paper.max_tokens)
        assert lengths == (real.request_id, real.num_prompt_tokens, real.num_output_tokens, real.max_tokens)


@pytest.mark.parametrize(
    ("values", "min_preemptions"),
    [
        ({}, 0),
        ({"max_num_seqs": 3}, 0),
        ({"max_num_batched_tokens": 16}, 0),
        ({"num_blocks": 31}, 5),
        ({"num_blocks": 31, "max_num_batched_tokens": 8, "max_num_seqs": 5}, 1),
        ({"block_size": 1, "num_blocks": 124}, 5),
        ({"scheduling": "static", "max_num_seqs": 4}, 0),
        ({"scheduling": "static", "max_num_seqs": 8, "num_blocks": 31}, 1),
        ({"kv_cache": "contiguous", "reserve": "exact"}, 0),
        ({"kv_cache": "contiguous", "reserve": "max", "max_model_len": 120}, 0),
        ({"kv_cache": "contiguous", "scheduling": "static", "reserve": "exact"}, 0),
    ],
)
@pytest.mark.parametrize("lengths", [LONG_TAIL, MIXED, equal_lengths(12, 17, 23)], ids=["long tail", "mixed", "equal"])
def test_the_plan_of_the_engine(deployment, make_config, serve, values, min_preemptions, lengths):
    config, arrivals = make_config(**values), arrive_at_once(lengths)
    engine = serve(config, arrivals)
    simulator = Simulator(deployment, config, arrivals)
    result = simulator.run()
    assert_same(engine, simulator)
    assert result.num_steps == len(engine.trace.steps)
    preemptions = count(engine.trace, Preempt)
    assert result.num_preemptions == preemptions
    if lengths is LONG_TAIL:
        assert preemptions >= min_preemptions
    simulator.cache.check_integrity()
    assert simulator.cache.num_free == engine.cache.num_free == engine.trace.num_blocks


@pytest.mark.parametrize("values", [{}, {"num_blocks": 31}, {"kv_cache": "contiguous", "reserve": "exact"}])
def test_the_plan_with_a_draft_that_is_always_right(deployment, make_config, serve, toy_model, values):
    """The target drafts for itself, so that every draft token stands."""
    arrivals = arrive_at_once(LONG_TAIL[:12])
    config = make_config(**values)
    drafting = dataclasses.replace(config, speculative=DraftModel(toy_model, k=3))
    simulator = Simulator(deployment, config, arrivals, drafting=Drafting(3, 1.0))
    simulator.run()
    assert_same(serve(drafting, arrivals), simulator)
    assert count(simulator.trace, Verify) > 10


def test_the_plan_with_a_draft_that_is_always_wrong(deployment, make_config, serve, monkeypatch):
    arrivals, config = arrive_at_once(LONG_TAIL[:12]), make_config(num_blocks=31)
    said = {token for request in serve(config, arrivals).trace.requests for token in request.output_token_ids}
    never = min(set(range(250)) - said)

    class Wrong:
        k = 3

        def propose(self, rows):
            return [DraftTokens([never] * row.max_drafts) for row in rows]

        def num_computed(self, request_id):
            return 10**9

        def bytes_per_block(self, block_size):
            return 0

        def __getattr__(self, name):
            return lambda *arguments: None

    monkeypatch.setattr("servelab.engine.speculator.make_proposer", lambda *_: Wrong())
    simulator = Simulator(deployment, config, arrivals, drafting=Drafting(3, 0.0))
    simulator.run()
    engine = serve(dataclasses.replace(config, speculative=NGram(k=3)), arrivals)
    assert engine.speculation.drafted > 0 == engine.speculation.accepted
    assert_same(engine, simulator)


def test_those_who_come_later_are_let_in_between_two_steps(deployment, make_config, toy_model):
    """An engine that is given each request at the same step plans the same."""
    arrivals = [Arrival(0.0, 9, 30), Arrival(0.004, 5, 12), Arrival(0.03, 20, 4), Arrival(99.0, 3, 3)]
    config = make_config(num_blocks=11)
    trace = simulate(deployment, config, arrivals).trace
    came = [step for step, record in enumerate(trace.steps) for event in record.events if event.kind == "arrive"]
    assert came[0] == 0 < came[1] < came[2] < came[3]
    elapsed = [sum(record.duration_s for record in trace.steps[:step]) for step in (came[1] - 1, came[1])]
    assert elapsed[0] < 0.004 <= elapsed[1]
    engine = Engine(toy_model, config)
    for step in range(len(trace.steps)):
        for number, arrival in zip(came, arrivals, strict=True):
            if number == step:
                params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
                engine.add_request([1] * arrival.prompt_tokens, params)
        engine.step()
    assert plan(trace) == plan(engine.trace)
    assert count(trace, Preempt) > 0
