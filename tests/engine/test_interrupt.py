"""A stop in the middle of bookkeeping comes after it; a step that is stopped or fails loses nothing but itself."""

import signal
import threading

import pytest

from servelab.cache import BlockPool
from servelab.engine.interrupt import uninterrupted
from servelab.sampling import SamplingParams

PROMPT = [10, 20, 30, 40, 50]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def test_an_interrupt_comes_when_the_block_is_over():
    done = []

    @uninterrupted()
    def work():
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_without_an_interrupt_nothing_happens():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_let_through():
    done = []

    def work():
        with uninterrupted():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("call", [1, 2, 5, 9])
def test_a_stop_between_pool_and_table_loses_no_block(make_engine, assert_empty, monkeypatch, call):
    """Ctrl-C at the worst moment: a block has left the pool and is in no table yet."""
    engine = make_engine()
    original, calls = BlockPool.allocate, []

    def interrupted(pool):
        block = original(pool)
        calls.append(block)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return block

    monkeypatch.setattr(BlockPool, "allocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1] * 9, [2] * 9], SamplingParams(max_tokens=30, ignore_eos=True))
    assert len(calls) >= call
    assert not engine.has_unfinished()
    assert_empty(engine)


@pytest.mark.parametrize("where", ["forward", "schedule", "sample"])
def test_an_interrupted_generate_leaves_the_engine_as_it_was(
    make_engine, drain, greedy, assert_empty, monkeypatch, where
):
    engine = make_engine(max_num_batched_tokens=4)
    engine.add_request(PROMPT[:3], until(6), "other")
    owner, name = {
        "forward": (engine.runner, "run"),
        "schedule": (engine.scheduler, "schedule"),
        "sample": (engine.sampler, "choose"),
    }[where]
    original, calls = getattr(owner, name), []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPT, PROMPT], until(8))
    monkeypatch.undo()
    engine.cache.check_integrity()
    assert list(engine._requests) == ["other"]
    outputs = drain(engine)
    assert list(outputs) == ["other"]
    assert outputs["other"].token_ids == greedy(PROMPT[:3], 6)
    assert [output.token_ids for output in engine.generate([PROMPT], until(5))] == [greedy(PROMPT, 5)]


def test_an_interrupted_step_may_be_repeated(make_engine, drain, greedy, monkeypatch):
    engine = make_engine()
    engine.add_request(PROMPT, until(5), "A")
    original = engine.runner.run

    def interrupt(*arguments):
        original(*arguments)
        raise KeyboardInterrupt

    for _ in range(2):
        engine.step()
        monkeypatch.setattr(engine.runner, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        monkeypatch.undo()
    assert drain(engine)["A"].token_ids == greedy(PROMPT, 5)


def test_a_failing_forward_pass_ends_its_requests_and_nothing_else(make_engine, drain, greedy, monkeypatch):
    """The error reaches the caller; the requests of that step end with "error"; the engine goes on."""
    engine = make_engine(max_num_seqs=2)
    for name in "ABC":
        engine.add_request(PROMPT, until(4), name)
    engine.step()

    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine.runner, "run", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    monkeypatch.undo()
    assert engine.cache.num_free == 64
    outputs = drain(engine)
    assert [outputs[name].finish_reason for name in "ABC"] == ["error", "error", "length"]
    assert outputs["A"].token_ids == greedy(PROMPT, 1)
    assert outputs["C"].token_ids == greedy(PROMPT, 4)


def test_a_failing_forward_pass_in_generate_reaches_the_caller(make_engine, assert_empty, monkeypatch):
    engine = make_engine(max_num_seqs=1)

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(engine.runner, "run", fail)
    with pytest.raises(RuntimeError, match="broken"):
        engine.generate([PROMPT, PROMPT], until(3))
    assert not engine.has_unfinished()
    assert_empty(engine)


def test_whatever_the_sampling_raises_the_requests_of_the_step_end(make_engine, monkeypatch, assert_empty):
    engine = make_engine()
    engine.add_request([1, 2])
    monkeypatch.setattr(engine.sampler, "choose", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    assert [output.finish_reason for output in engine.step()] == ["error"]
    assert_empty(engine)
