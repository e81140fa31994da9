import math
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from demo_chapter import BLOCKS, blocks

from servelab.course.tasks.observe import OutOfTimeError, foreign_module, observe, time_limit
from servelab.course.tasks.task import STANDARD_IMPORTS


def outcome(answer, *calls):
    return observe(BLOCKS, answer, calls or [(7, 4)])[-1]


def endless(num_tokens, block_size):
    while True:
        try:  # noqa: SIM105 (as a learner would write it)
            num_tokens += 1
        except Exception:
            pass


def sleeps(num_tokens, block_size):
    threading.Event().wait(60)


@pytest.mark.parametrize("answer", [endless])
def test_a_loop_without_an_end_is_stopped(answer):
    started = time.monotonic()
    assert outcome(answer).outcome == "too_slow"
    assert time.monotonic() - started < 10 * BLOCKS.seconds


def test_a_sleep_is_stopped_too():
    task = replace(BLOCKS, allowed_imports=("threading",))
    assert observe(task, sleeps, [(1, 1)])[0].outcome == "too_slow"


def test_a_loop_is_stopped_outside_the_main_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(outcome(endless).outcome))
    thread.start()
    thread.join(20)
    assert seen == ["too_slow"]


def test_the_limit_leaves_the_alarm_as_it_was():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(5):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert not issubclass(OutOfTimeError, Exception)


def test_an_exception_is_reported_by_name_with_the_learners_line():
    def divides(num_tokens, block_size):
        return num_tokens / (block_size - block_size)

    seen = outcome(divides)
    assert seen.outcome == "error"
    assert seen.text == "ZeroDivisionError: division by zero"
    assert seen.line.endswith("return num_tokens / (block_size - block_size)")
    assert seen.line.partition(":")[0].isdigit()


def test_exit_is_an_error_like_any_other():
    def leaves(num_tokens, block_size):
        raise SystemExit(0)

    assert outcome(leaves).text == "SystemExit: 0"


def test_the_learners_own_interrupt_goes_through():
    def interrupted(num_tokens, block_size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcome(interrupted)


def test_an_exception_that_cannot_be_printed_is_still_named():
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError

    def raises(num_tokens, block_size):
        raise Bad

    assert outcome(raises).text == "Bad"


def test_arguments_are_copied_so_a_learner_cannot_change_the_cases():
    case = ([3, 1, 2],)

    def sorts(values):
        values.sort()
        return values

    assert outcome(sorts, case).value == [1, 2, 3]
    assert case == ([3, 1, 2],)


def test_what_the_code_prints_is_kept_and_not_shown(capsys):
    def talks(num_tokens, block_size):
        print("here", num_tokens)
        return 1

    assert outcome(talks).printed == "here 7\n"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("nothing", [None, ...])
def test_nothing_written_is_not_done(nothing):
    assert outcome(nothing).outcome == "not_done"
    assert outcome(lambda num_tokens, block_size: ...).outcome == "not_done"


def test_a_call_instead_of_its_name_is_refused():
    assert outcome(blocks(7, 4)).text == "type int"
    assert outcome(dict).outcome == "refused"


def test_modules_that_a_task_does_not_allow_are_named():
    def with_numpy(num_tokens, block_size):
        return int(np.ceil(num_tokens / block_size))

    def with_import(num_tokens, block_size):
        import torch

        return int(torch.tensor(num_tokens))

    def with_math(num_tokens, block_size):
        return math.ceil(num_tokens / block_size)

    assert outcome(with_numpy).text == "numpy"
    assert outcome(with_import).text == "torch"
    assert outcome(with_math).value == 2
    assert observe(replace(BLOCKS, allowed_imports=("numpy",)), with_numpy, [(7, 4)])[0].value == 2


def test_servelabs_own_answer_is_found_wherever_it_hides():
    from servelab.costs import kv_cache_bytes_per_token as ours

    def wraps(*arguments):
        return ours(*arguments)

    def helper():
        return wraps

    class Subclass(type("Base", (), {"__module__": "servelab.cache.pool"})):
        pass

    def far(num_tokens, block_size):
        return helper()()

    for answer in (ours, wraps, far, Subclass):
        assert foreign_module(answer, STANDARD_IMPORTS).startswith("servelab")
    assert foreign_module(ours, ("servelab.costs",)).startswith("servelab")
    assert foreign_module(wraps, ("servelab.costs",)) == ""


def test_what_python_itself_brings_is_no_foreign_module():
    from bisect import insort
    from dataclasses import dataclass
    from enum import Enum
    from functools import lru_cache
    from heapq import heappush

    class Kind(Enum):
        FREE = 0

    @dataclass
    class Block:
        index: int = 0

    @lru_cache
    def cached(n):
        return math.ceil(n)

    def answer(num_tokens, block_size):
        heappush([], num_tokens)
        insort([], num_tokens)
        return cached(num_tokens / block_size) + Block().index + Kind.FREE.value

    assert outcome(answer).value == 2


def test_an_attribute_that_is_called_like_a_module_is_no_import():
    def answer(num_tokens, block_size):
        return num_tokens.np + block_size.time

    assert outcome(answer).text.startswith("AttributeError")


def test_a_cached_function_does_not_hide_a_module():
    from functools import lru_cache

    @lru_cache
    def cached(num_tokens, block_size):
        return int(np.ceil(num_tokens / block_size))

    assert outcome(cached).text == "numpy"
