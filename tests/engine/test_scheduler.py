"""`Scheduler`: the order of service, the budget, preemption, and static against continuous batching."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servelab.sampling import SamplingParams
from servelab.trace import Admit, Emit, Preempt, Schedule, Wait


def until(num_tokens, **params):
    """Exactly `num_tokens` output tokens, greedy."""
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def prompt(length, first=1):
    return [first + position % 50 for position in range(length)]


def events(trace, kind):
    return [[event for event in step.events if isinstance(event, kind)] for step in trace.steps]


def rows(trace):
    """For each step: request -> tokens computed in it."""
    return [dict(event.rows) for step in events(trace, Schedule) for event in step]


@pytest.mark.parametrize(
    ("outputs", "scheduling", "num_steps"),
    [
        ((7, 2, 9, 3), "static", 16),
        ((7, 2, 9, 3), "continuous", 11),
        ((2, 3, 7, 9), "static", 12),
        ((2, 3, 7, 9), "continuous", 12),
    ],
)
def test_two_slots_by_hand(make_engine, drain, outputs, scheduling, num_steps):
    """Two seats; outputs of 7, 2, 9 and 3 tokens: 16 steps static (66 % used), 11 continuous (95 %); sorted, both 12.

    What counts as a step: the step that computes a whole prompt also gives the first output token, so a request of
    n output tokens sits on its seat for n steps, not n + 1.
    """
    engine = make_engine(scheduling=scheduling, max_num_seqs=2)
    for num_tokens in outputs:
        engine.add_request(prompt(3), until(num_tokens))
    drain(engine)
    assert len(engine.trace.steps) == num_steps
    assert sum(len(row) for row in rows(engine.trace)) == sum(outputs) == 21
    if outputs[0] == 7:
        assert round(21 / (2 * num_steps), 2) == {"static": 0.66, "continuous": 0.95}[scheduling]


def test_a_freed_seat_is_taken_in_the_next_step(make_engine, drain):
    engine = make_engine(max_num_seqs=2)
    for num_tokens in (7, 2, 9, 3):
        engine.add_request(prompt(3), until(num_tokens))
    drain(engine)
    admitted = {event.request: step for step, found in enumerate(events(engine.trace, Admit)) for event in found}
    assert admitted == {0: 0, 1: 0, 2: 2, 3: 7}


def test_a_static_batch_computes_live_rows_only(make_engine, drain):
    engine = make_engine(scheduling="static", max_num_seqs=2)
    for num_tokens in (7, 2, 9, 3):
        engine.add_request(prompt(3), until(num_tokens))
    drain(engine)
    assert [len(row) for row in rows(engine.trace)] == [2, 2, 1, 1, 1, 1, 1, *[2, 2, 2, 1, 1, 1, 1, 1, 1]]


def test_a_static_batch_starts_only_when_the_last_one_is_over(make_engine, drain):
    engine = make_engine(scheduling="static", max_num_seqs=3)
    for num_tokens in (2, 5, 1, 4, 4, 1, 2):
        engine.add_request(prompt(3), until(num_tokens))
    drain(engine)
    for step, admitted in enumerate(events(engine.trace, Admit)):
        if admitted and step:
            assert engine.trace.state_at(step - 1, "end").running == []


def test_a_static_batch_is_filled_even_when_its_prompts_exceed_the_budget(make_engine, drain):
    engine = make_engine(scheduling="static", max_num_seqs=3, max_num_batched_tokens=8)
    for _ in range(3):
        engine.add_request(prompt(7), until(2))
    drain(engine)
    assert [len(found) for found in events(engine.trace, Admit)] == [3] + [0] * (len(engine.trace.steps) - 1)
    assert max(sum(row.values()) for row in rows(engine.trace)) <= 8


def test_a_decoder_gets_a_token_every_step_beside_a_prompt_of_16_chunks(make_engine, drain):
    """A long prompt takes what the budget leaves; it does not hold up those who decode [sglang#32549]."""
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request(prompt(2), until(40), "decoder")
    engine.step()
    engine.add_request(prompt(16 * 7), until(2), "prompt")
    drain(engine)
    emitted = [dict(event.rows) for step in events(engine.trace, Emit) for event in step]
    assert all(step.get(0) == 1 for step in emitted[:40])
    chunks = [row[1] for row in rows(engine.trace) if row.get(1, 0) > 1]
    assert chunks == [7] * 16


def test_an_admitted_request_owns_blocks_for_its_whole_prompt_before_its_last_chunk(make_engine):
    """So a later chunk never has to preempt anybody for the rest of a prompt."""
    engine = make_engine(block_size=4, num_blocks=16, max_num_batched_tokens=4)
    engine.add_request(prompt(15), until(1), request_id="A")
    engine.step()
    assert len(engine.cache.block_table("A")) == 4
    assert rows(engine.trace) == [{0: 4}]


def test_two_requests_of_60_percent_of_the_pool_both_finish(make_engine, drain, greedy):
    """They cannot run to their end together. The older never goes backwards [inference-sim#529]."""
    for num_prompt_tokens, num_output_tokens in ((24, 24), (4, 44), (44, 4)):
        engine = make_engine(num_blocks=20)
        older = engine.add_request(prompt(num_prompt_tokens), until(num_output_tokens))
        younger = engine.add_request(prompt(num_prompt_tokens, 7), until(num_output_tokens))
        outputs = drain(engine, max_steps=2 * num_output_tokens + 4)
        assert outputs[older].metrics.num_preemptions == 0
        assert outputs[older].token_ids == greedy(prompt(num_prompt_tokens), num_output_tokens)
        assert outputs[younger].token_ids == greedy(prompt(num_prompt_tokens, 7), num_output_tokens)
        computed = [state.requests[0].num_computed_tokens for state in engine.trace.states()]
        assert computed == sorted(computed)


def test_the_youngest_is_preempted_and_comes_back_first(make_engine, drain):
    engine = make_engine(num_blocks=6)
    for name in "ABC":
        engine.add_request(prompt(7), until(9), name)
    engine.add_request(prompt(3), until(2), "D")
    outputs = drain(engine)
    preempted = [event.request for step in events(engine.trace, Preempt) for event in step]
    assert preempted[0] == 2
    assert 0 not in preempted
    admitted = [event.request for step in events(engine.trace, Admit) for event in step]
    assert admitted.index(3) > len(admitted) - 1 - admitted[::-1].index(2), "D waits behind C, who arrived before it"
    assert {name: len(output.token_ids) for name, output in outputs.items()} == {"A": 9, "B": 9, "C": 9, "D": 2}


def test_a_request_preempted_at_block_size_plus_one_tokens_loses_nothing(make_engine, drain, greedy):
    """The token that was sampled and not yet computed must survive the preemption [nano-vllm#217]."""
    engine = make_engine(num_blocks=4)
    engine.add_request(prompt(4), until(8), "older")
    engine.add_request(prompt(4, 9), until(8), "younger")
    lengths = {}
    while engine.has_unfinished():
        before = {request.request_id: request.num_tokens for request in engine.scheduler.running}
        for output in engine.step():
            if output.finish_reason:
                lengths[output.request_id] = output.token_ids
        for event in engine.trace.steps[-1].events:
            if isinstance(event, Preempt):
                assert before["younger"] >= 5
                assert event.request == 1
    assert sum(len(found) for found in events(engine.trace, Preempt)) >= 1
    assert lengths == {"older": greedy(prompt(4), 8), "younger": greedy(prompt(4, 9), 8)}


@pytest.mark.parametrize("at_tokens", [4, 5, 6, 8, 9])
def test_a_preemption_at_any_length_changes_no_token(make_engine, drain, greedy, at_tokens):
    """Neighbours of block_size + 1: preempted by hand at a full block, one before and one after [nano-vllm#217]."""
    engine = make_engine()
    engine.add_request(prompt(3), until(12), "A")
    while engine._requests["A"].num_tokens < at_tokens:
        engine.step()
    engine.scheduler._preempt(engine.scheduler.running[0])
    assert drain(engine)["A"].token_ids == greedy(prompt(3), 12)


def test_the_head_of_the_queue_says_why_it_waits(make_engine, drain):
    reasons = {}
    loads = {
        "no_seat": {"max_num_seqs": 1},
        "no_budget": {"max_num_batched_tokens": 6},
        "no_memory": {"num_blocks": 3},
        "batch_unfinished": {"scheduling": "static", "max_num_seqs": 1},
    }
    for reason, config in loads.items():
        engine = make_engine(**config)
        engine.add_request(prompt(6), until(3))
        engine.add_request(prompt(6), until(3))
        drain(engine)
        reasons[reason] = next(event for step in events(engine.trace, Wait) for event in step)
    assert reasons["no_seat"] == Wait(1, "no_seat")
    assert reasons["no_budget"] == Wait(1, "no_budget")
    assert reasons["no_memory"] == Wait(1, "no_memory", needed=2, free=1, largest=1)
    # In its first step the batch is still being filled, and there is one seat; from the second on it is closed.
    assert reasons["batch_unfinished"] == Wait(1, "no_seat")
    assert engine.trace.steps[1].events[0] == Wait(1, "batch_unfinished")


def test_nobody_overtakes_a_request_that_waits_for_memory(make_engine, drain):
    engine = make_engine(num_blocks=8)
    engine.add_request(prompt(20), until(8), "first")
    engine.add_request(prompt(24), until(1), "long")
    engine.add_request(prompt(1), until(1), "short")
    drain(engine)
    admitted = [event.request for step in events(engine.trace, Admit) for event in step]
    assert admitted == [0, 1, 2]


def test_exact_contiguous_reserves_prompt_and_max_tokens_and_max_reserves_the_limit(make_engine):
    for reserve, length in (("exact", 9), ("max", 32)):
        engine = make_engine(kv_cache="contiguous", reserve=reserve, max_model_len=32)
        engine.add_request(prompt(5), until(4), "A")
        engine.step()
        assert engine.cache.num_free == 256 - length


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 14)), min_size=1, max_size=7),
    block_size=st.integers(1, 6),
    spare_blocks=st.integers(0, 6),
    max_num_seqs=st.integers(1, 4),
    budget=st.integers(1, 24),
    scheduling=st.sampled_from(["continuous", "static"]),
    kv_cache=st.sampled_from(["paged", "paged", "contiguous"]),
)
def test_any_load_finishes_with_the_reference_tokens(
    make_engine, drain, greedy, requests, block_size, spare_blocks, max_num_seqs, budget, scheduling, kv_cache
):
    """Pools that barely hold the longest request, budgets of one token: all finish, the budget and the order hold."""
    longest = max(num_prompt + num_output for num_prompt, num_output in requests)
    engine = make_engine(
        block_size=block_size,
        num_blocks=-(-longest // block_size) + spare_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        scheduling=scheduling,
        kv_cache=kv_cache,
        reserve="exact",
    )
    names = [engine.add_request(prompt(p, i + 1), until(o)) for i, (p, o) in enumerate(requests)]
    outputs = drain(engine)
    for index, (name, (num_prompt, num_output)) in enumerate(zip(names, requests, strict=True)):
        assert outputs[name].token_ids == greedy(prompt(num_prompt, index + 1), num_output)
        assert outputs[name].finish_reason == "length"
    assert outputs[names[0]].metrics.num_preemptions == 0
    for step, row in enumerate(rows(engine.trace)):
        assert 1 <= sum(row.values()) <= budget
        assert min(row.values()) >= 1
        running = engine.trace.state_at(step, "computed").running
        assert running == sorted(running), "oldest first"
        assert len(running) <= max_num_seqs
        if scheduling == "continuous":
            assert set(row) == set(running), "who runs computes at least one token in every step"
