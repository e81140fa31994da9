"""Several answers to one prompt: computed once, forked, copied on write, and each an output of its own."""

import pytest

from servelab.sampling import SamplingParams
from servelab.trace import Copy, Finish, Fork, Preempt

PROMPT = [10, 20, 30, 40, 50]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def events(engine, kind):
    return [event for step in engine.trace.steps for event in step.events if isinstance(event, kind)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_prompt_is_computed_once_and_its_last_block_copied(make_engine, drain, greedy, length, n):
    """A prompt that ends within a block leaves it to the last one who writes: n - 1 copies, or none at a boundary."""
    engine = make_engine()
    prompt = (PROMPT * 2)[:length]
    engine.add_request(prompt, until(6, n=n), "A")
    outputs = drain(engine)
    assert {name: output.token_ids for name, output in outputs.items()} == {
        name: greedy(prompt, 6) for name in ["A", "A#1", "A#2"][:n]
    }
    assert [outputs[name].index for name in sorted(outputs)] == list(range(n))
    assert {output.request_id for output in outputs.values()} == {"A"}
    assert len(events(engine, Fork)) == n - 1
    assert len(events(engine, Copy)) == (n - 1 if length % 4 else 0)
    scheduled = [dict(event.rows) for step in engine.trace.steps for event in step.events if event.kind == "schedule"]
    assert scheduled[0] == {0: length}
    assert scheduled[1:] == [dict.fromkeys(range(n), 1)] * 5


def test_the_answers_share_the_blocks_of_the_prompt(make_engine):
    engine = make_engine()
    engine.add_request([3] * 10, until(9, n=3), "A")
    engine.step()
    tables = [engine.cache.block_table(name) for name in ("A", "A#1", "A#2")]
    assert tables == [[0, 1, 2]] * 3
    engine.step()
    tables = [engine.cache.block_table(name) for name in ("A", "A#1", "A#2")]
    assert [table[:2] for table in tables] == [[0, 1]] * 3
    assert [table[2] for table in tables] == [3, 4, 2], "the last one to write keeps the block"
    assert engine.cache.pool.num_referenced == 5


def test_a_copy_may_take_a_block_that_the_prefix_cache_still_knew(make_engine, drain, greedy):
    engine = make_engine(num_blocks=4)
    engine.add_request([9] * 8, until(5), "A")
    drain(engine)
    engine.add_request([7] * 5, until(3, n=2), "B")
    drain(engine)
    kinds = [event.kind for step in engine.trace.steps for event in step.events]
    assert kinds[kinds.index("copy") - 1] == "evict"


def test_each_answer_draws_by_itself_and_the_first_as_if_it_were_alone(make_engine, drain):
    """One generator for each (seed, index); the answers do not depend on memory, nor on what runs beside them."""
    params = until(12, temperature=1.0, seed=7)
    alone = make_engine().generate([PROMPT], params)[0].token_ids
    many = until(12, temperature=1.0, seed=7, n=4)
    outputs = make_engine().generate([PROMPT], many)
    tokens = [output.token_ids for output in outputs]
    assert tokens[0] == alone
    assert len({tuple(each) for each in tokens}) == 4
    again = make_engine(num_blocks=10, prefix_caching=False).generate([[1, 2], PROMPT], [until(9), many])
    assert [output.token_ids for output in again[1:]] == tokens
    contiguous = make_engine(kv_cache="contiguous", reserve="exact").generate([PROMPT], many)
    assert [output.token_ids for output in contiguous] == tokens
    assert make_engine().generate([PROMPT], until(12, temperature=1.0, seed=8, n=2))[1].token_ids not in tokens


@pytest.mark.parametrize("cache", [{}, {"kv_cache": "contiguous", "reserve": "exact"}])
def test_generate_returns_the_answers_in_order_of_prompt_and_index(make_engine, greedy, assert_empty, cache):
    engine = make_engine(**cache, max_num_seqs=3)
    prompts = [PROMPT, [1], PROMPT[:2]]
    outputs = engine.generate(prompts, [until(5, n=2), until(7), until(2, n=3)])
    assert [output.index for output in outputs] == [0, 1, 0, 0, 1, 2]
    expected = [greedy(PROMPT, 5)] * 2 + [greedy([1], 7)] + [greedy(PROMPT[:2], 2)] * 3
    assert [output.token_ids for output in outputs] == expected
    assert_empty(engine)


def test_more_answers_than_seats_are_refused(make_engine, assert_empty):
    engine = make_engine(max_num_seqs=3)
    with pytest.raises(ValueError, match=r"expected n <= 3 \(max_num_seqs\), got 4"):
        engine.add_request(PROMPT, until(2, n=4))
    assert (engine.trace.requests, engine.has_unfinished()) == ([], False)
    assert_empty(engine)


def test_more_answers_than_tokens_of_a_step_are_refused(make_engine, assert_empty):
    """They could never all get a token in one step."""
    engine = make_engine(max_num_batched_tokens=2)
    with pytest.raises(ValueError, match=r"expected n <= 2 \(max_num_batched_tokens\), got 3"):
        engine.add_request(PROMPT, until(2, n=3))
    assert not engine.has_unfinished()
    assert_empty(engine)


@pytest.mark.parametrize("budget", [3, 4, 5, 7])
def test_answers_take_no_token_from_a_younger_request(make_engine, budget):
    """They run before it as soon as they are forked: it starts when there is a token of every step for it too
    [sglang#32549]."""
    engine = make_engine(max_num_batched_tokens=budget, max_num_seqs=8)
    engine.add_request([7] * 2, until(20, n=3), "A")
    engine.add_request([1], until(5), "B")
    engine.add_request([2] * 9, until(5, n=2), "C")
    emitted = {}
    for step in range(60):
        for output in engine.step():
            emitted.setdefault((output.request_id, output.index), []).append(step)
    assert not engine.has_unfinished()
    for steps in emitted.values():
        assert steps == list(range(steps[0], steps[0] + len(steps))), emitted
    assert emitted["B", 0][0] == (0 if budget > 3 else 20)


@pytest.mark.parametrize("scheduling", ["continuous", "static"])
def test_an_answer_that_is_not_forked_yet_has_its_seat(make_engine, drain, scheduling):
    """A prompt with 3 answers in chunks, 4 seats: one more request starts beside it, and no other."""
    engine = make_engine(max_num_seqs=4, max_num_batched_tokens=4, scheduling=scheduling)
    engine.add_request([7] * 9, until(6, n=3), "A")
    engine.add_request(PROMPT[:2], until(6), "B")
    engine.add_request(PROMPT[:2], until(6), "C")
    drain(engine)
    for state in engine.trace.states("end"):
        assert len(state.running) <= 4
    first = engine.trace.state_at(3, "computed")
    assert [engine.trace.requests[index].request_id for index in first.running] == ["A", "A#1", "A#2", "B"]
    assert all(4 not in state.running for state in list(engine.trace.states("scheduled"))[:6])


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_preempted_before_and_after_the_fork(make_engine, drain, greedy, num_steps):
    """By hand: in the first chunk, in the last one, and after the fork; each goes on as if nothing had been."""
    engine = make_engine(max_num_batched_tokens=4)
    engine.add_request([7] * 9, until(6, n=3), "A")
    for _ in range(num_steps):
        engine.step()
    for _ in range(len(engine.scheduler.running)):
        engine.scheduler._preempt(engine.scheduler.running[-1])
    engine.cache.check_integrity()
    outputs = drain(engine)
    assert {name: output.token_ids for name, output in outputs.items()} == dict.fromkeys(
        ["A", "A#1", "A#2"], greedy([7] * 9, 6)
    )
    assert len(events(engine, Fork)) == 2


def test_answers_that_do_not_fit_together_take_turns(make_engine, drain, greedy):
    """Each of three answers needs 6 blocks, the pool has 8: the youngest are preempted, the first never is."""
    engine = make_engine(num_blocks=8)
    engine.add_request([7] * 5, until(18, n=3), "A")
    outputs = drain(engine)
    assert all(output.token_ids == greedy([7] * 5, 18) for output in outputs.values())
    preempted = [event.request for event in events(engine, Preempt)]
    assert preempted
    assert 0 not in preempted


def test_two_answers_in_a_pool_for_one_come_after_each_other(make_engine, drain, greedy):
    """The last block is both answers', and none is free for a copy: the second one has to go, and comes back."""
    engine = make_engine(num_blocks=2)
    engine.add_request(PROMPT, until(3, n=2), "A")
    outputs = drain(engine)
    assert [outputs[name].token_ids for name in ("A", "A#1")] == [greedy(PROMPT, 3)] * 2
    assert {event.request for event in events(engine, Preempt)} == {1}


def test_answers_of_one_token_end_in_the_step_of_the_fork(make_engine, assert_empty, greedy):
    """`max_tokens=1`, three answers: one token each, reason "length", and every block is back [vllm#6521]."""
    engine = make_engine()
    engine.add_request(PROMPT, until(1, n=3), "A")
    outputs = engine.step()
    assert [(output.token_ids, output.finish_reason) for output in outputs] == [(greedy(PROMPT, 1), "length")] * 3
    assert_empty(engine)


@pytest.mark.parametrize("cache", [{}, {"kv_cache": "contiguous", "reserve": "exact"}])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5])
def test_aborting_a_request_ends_all_its_answers(make_engine, drain, assert_empty, greedy, cache, num_steps):
    """While waiting, in mid-prefill, at the fork and after it; those beside it are left alone."""
    engine = make_engine(**cache, max_num_batched_tokens=5, max_num_seqs=4)
    engine.add_request([7] * 9, until(9, n=3), "A")
    engine.add_request(PROMPT, until(9), "B")
    for _ in range(num_steps):
        engine.step()
    engine.abort("A")
    assert [name for name in engine._requests if name.startswith("A")] == []
    assert {name for name in engine.cache.request_ids if name.startswith("A")} == set()
    outputs = drain(engine)
    assert {name: outputs[name].finish_reason for name in outputs} == {
        **dict.fromkeys(["A", "A#1", "A#2"], "abort"),
        "B": "length",
    }
    assert outputs["B"].token_ids == greedy(PROMPT, 9)
    ended = [event.request for event in events(engine, Finish)]
    assert sorted(ended) == [0, 1, 2, 3]
    assert_empty(engine)


def test_an_answer_that_ends_at_once_leaves_the_others_alone(make_engine, drain, greedy, monkeypatch):
    """The first token ends one answer at the step of the fork; the others go on."""
    engine = make_engine()
    params = until(6, n=3, temperature=3.0, seed=0)
    first = [output.token_ids[0] for output in make_engine().generate([PROMPT], params)]
    assert len(set(first)) == 3
    ends = SamplingParams(max_tokens=6, n=3, temperature=3.0, seed=0, ignore_eos=True, stop_token_ids=(first[0],))
    engine.add_request(PROMPT, ends, "A")
    outputs = engine.step()
    assert [(output.index, output.finish_reason) for output in outputs] == [(0, "stop"), (1, None), (2, None)]
    assert engine.cache.request_ids == ["A#1", "A#2"]
    assert len(drain(engine)) == 2


def test_a_failing_step_before_the_fork_ends_all_answers(make_engine, monkeypatch, assert_empty):
    engine = make_engine(max_num_batched_tokens=3)
    engine.add_request(PROMPT, until(4, n=3), "A")
    engine.step()

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(engine.runner, "run", fail)
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    assert [(output.index, output.finish_reason) for output in engine.step()] == [(i, "error") for i in range(3)]
    assert_empty(engine)


def test_names_of_answers_are_taken_while_they_run(make_engine, drain):
    engine = make_engine()
    engine.add_request(PROMPT, until(3, n=2), "A")
    with pytest.raises(ValueError, match="expected a request_id that no unfinished request has, got 'A#1' again"):
        engine.add_request(PROMPT, until(3), "A#1")
    engine.add_request(PROMPT, until(3), "B#1")
    with pytest.raises(ValueError, match="expected a request_id that no unfinished request has, got 'B#1' again"):
        engine.add_request(PROMPT, until(3, n=2), "B")
    engine.add_request(PROMPT, until(3), "0#1")
    assert engine.add_request(PROMPT, until(3, n=2)) == "1"
    drain(engine)


def test_metrics_count_each_answer_by_itself(make_engine):
    outputs = make_engine().generate([PROMPT], until(4, n=2))
    assert [output.metrics.num_cached_tokens for output in outputs] == [0, 5]
    assert [output.metrics.num_output_tokens for output in outputs] == [4, 4]
    assert outputs[0].metrics is not outputs[1].metrics
