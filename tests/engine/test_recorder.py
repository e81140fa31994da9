"""`Recorder`: the order of events, steps that open by themselves, and the size of a long trace."""

import pytest

from servelab.cache import ContiguousCacheManager, KVCacheManager
from servelab.engine import Engine, EngineConfig
from servelab.engine.recorder import Recorder
from servelab.sampling import SamplingParams
from servelab.speculative import NGram
from servelab.trace import Arrive, Finish, Free, Release, Reserve, Trace, Trim, Wait


def test_the_order_of_events_in_a_step(make_engine, drain):
    """As `servelab.trace.event` says: arrivals and aborts, decisions, what was computed, then who leaves."""
    engine = make_engine(num_blocks=8, max_num_seqs=3, speculative=NGram())
    for index in range(5):
        params = SamplingParams(max_tokens=2 + 3 * index, n=1 + index % 2, ignore_eos=True, seed=1)
        engine.add_request([index // 2 + 1] * 6, params, str(index))
    engine.abort("1")
    drain(engine)
    order = ["arrive", "abort", "decide", "draft", "schedule", "traffic", "verify", "fork", "emit", "cache"]
    order += ["trim", "leave"]
    decisions = ("preempt", "admit", "hit", "evict", "allocate", "copy", "reserve", "wait")
    seen, decided = set(), []
    for step in engine.trace.steps:
        phase = 0
        for event in step.events:
            kind = "decide" if event.kind in decisions else event.kind
            if isinstance(event, Finish):
                kind = "abort" if event.reason == "abort" else "leave"
            if isinstance(event, (Free, Release)):
                continue  # belongs to the Preempt or Finish before it
            assert order.index(kind) >= phase, step.events
            phase = order.index(kind)
            seen.add(kind)
        assert [event.kind for event in step.events].count("schedule") == 1
        assert [event.kind for event in step.events].count("emit") <= 1
        decided += [event.kind for event in step.events if event.kind in decisions]
    assert seen == set(order)
    assert set(decided) == set(decisions) - {"reserve"}


def test_arriving_opens_a_step_and_an_empty_step_is_not_recorded(make_engine):
    engine = make_engine()
    assert engine.step() == []
    assert engine.trace.steps == []
    engine.add_request([1], SamplingParams(max_tokens=1))
    assert engine.trace.steps[0].events == [Arrive(0)]
    engine.step()
    assert len(engine.trace.steps) == 1


def test_a_contiguous_cache_records_ranges():
    cache = ContiguousCacheManager(10, reserve="exact")
    recorder = Recorder(Trace("contiguous", 10, 1), cache)
    recorder.expect("A", [1, 2], 2, ["a", "b"])
    recorder.arrive("A")
    recorder.allocate("A", cache.allocate("A", 4))
    recorder.allocate("A", cache.allocate("A", 4))
    recorder.trim("A", cache.trim("A", 1))
    recorder.free("A", cache.free("A"))
    recorder.free("A", cache.free("A"))
    assert recorder.trace.steps[0].events == [Arrive(0), Reserve(0, 0, 4), Release(0, 0, 4)]


def test_a_paged_cache_records_what_it_was_given_back():
    cache = KVCacheManager(4, 2)
    recorder = Recorder(Trace("paged", 4, 2), cache)
    recorder.expect("A", [1], 2, ["a"])
    recorder.allocate("A", cache.allocate("A", 6))
    recorder.trim("A", cache.trim("A", 1))
    assert recorder.trace.steps[0].events[-2:] == [Trim(0, 2), Trim(0, 1)]


@pytest.mark.parametrize(("needed", "wait"), [(0, Wait(0, "no_seat")), (3, Wait(0, "no_seat", 3, 4, 4))])
def test_a_wait_shows_memory_only_where_memory_is_the_reason(needed, wait):
    recorder = Recorder(Trace("paged", 4, 2), KVCacheManager(4, 2))
    recorder.expect("A", [1], 1, ["a"])
    recorder.arrive("A")
    recorder.wait("A", "no_seat", needed)
    assert recorder.trace.steps[0].events[-1] == wait


def test_64_requests_and_2000_steps_are_less_than_5_mb(tmp_path):
    """The largest such trace: all 64 run in every step, ids of five digits, texts of seven letters. It loads equal."""
    cache = KVCacheManager(num_blocks=64 * 130, block_size=16)
    trace = Trace("paged", cache.pool.num_blocks, cache.block_size, max_num_seqs=64, model="smollm2-135m")
    recorder = Recorder(trace, cache)
    names = [str(number) for number in range(64)]
    for name in names:
        recorder.expect(name, [49_151] * 16, 2000, [" system"] * 16)
        recorder.arrive(name)
        recorder.admit(name)
    for step in range(2000):
        for name in names:
            recorder.allocate(name, cache.allocate(name, 16 + step))
        recorder.compute((name, 1 if step else 16) for name in names)
        recorder.traffic(270_000_000, 64 * step * 23_040, 64 * 23_040)
        recorder.emit((name, [49_151], [" system"]) for name in names)
        if step % 16 == 15:
            for name in names:
                recorder.cache_blocks(name, [(step // 16, cache.block_table(name)[step // 16])])
        recorder.close_step(0.0123456)
    path = trace.save(tmp_path / "trace.json")
    assert (len(trace.requests), len(trace.steps)) == (64, 2000)
    assert path.stat().st_size < 5_000_000
    loaded = Trace.load(path)
    assert loaded.requests == trace.requests
    assert [step.events for step in loaded.steps] == [step.events for step in trace.steps]
    tables = [request.block_table for request in loaded.state_at(1999, "end").requests]
    assert tables == [cache.block_table(name) for name in names]


def test_an_engine_that_records_nothing_answers_the_same_and_keeps_nothing(toy_model):
    """A server lives for long; a trace would grow with every request."""
    prompts, params = (
        [[1, 2, 3] * 5, [4] * 9],
        SamplingParams(max_tokens=12, n=2, seed=1, temperature=1.0, ignore_eos=True),
    )
    answers = []
    for record_trace in (True, False):
        config = EngineConfig(block_size=4, num_blocks=12, speculative=NGram(), record_trace=record_trace)
        engine = Engine(toy_model, config)
        answers.append([output.token_ids for output in engine.generate(prompts, params)])
        assert bool(engine.trace.steps) == bool(engine.trace.requests) == bool(engine.recorder._indices) == record_trace
    assert answers[0] == answers[1]
