"""`uninterrupted`: a stop in the middle of bookkeeping comes after it, and nothing is lost."""

import signal
import threading

import pytest

from servelab.cache import BlockPool
from servelab.engine.interrupt import uninterrupted
from servelab.sampling import SamplingParams


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
