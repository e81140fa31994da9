from dataclasses import replace

import pytest
from demo_chapter import BLOCKS, CAPACITY, ONE_TOO_MANY, ROUND_DOWN, blocks

from servelab.course.tasks import task, tasks
from servelab.course.tasks.task import Case, Mistake, run_task


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


def test_the_right_answer_passes_for_every_seed():
    assert all(run_task(BLOCKS, blocks, seed).passed for seed in range(20))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n, size: n // size, ROUND_DOWN),
        (lambda n, size: n // size + 1, ONE_TOO_MANY),
        (lambda n, size: -(-n // size) + 5, ""),
        (lambda n, size: n / size, "expected int, got float"),
        (lambda n, size: float("nan"), "expected int, got float"),
        (lambda n, size: True, "expected int, got bool"),
        (lambda n, size: str(-(-n // size)), "expected int, got str"),
        (lambda n, size: EqualToAll(), "Return plain numbers"),
        (lambda n, size: (yield), "Return plain numbers"),
        (lambda n, size: -(-n // size) if n <= 8 else None, "expected int, got None"),
        (lambda n, size: 2, ""),
    ],
)
def test_each_plausible_wrong_answer_fails_with_its_own_message(answer, message):
    result = run_task(BLOCKS, answer, 1)
    assert result.status == "wrong"
    assert message in result.message
    assert result.got


def test_the_mistake_that_explains_most_wrong_cases_is_named():
    def constant(n, size):
        return 1 if n == 7 else n // size + 1

    assert run_task(BLOCKS, constant, 1).case_index == 0
    assert run_task(BLOCKS, lambda n, size: n // size + 1, 1).mistake == "one too many"


def test_of_two_mistakes_in_the_same_case_the_one_that_explains_more_cases_is_named():
    first = BLOCKS.cases(1)[0]
    once = Mistake("here only", lambda case, got: case.arguments == first.arguments, "once")
    always = Mistake("everywhere", lambda case, got: got == 0, "always")
    for mistakes in ((once, always), (always, once)):
        assert run_task(replace(BLOCKS, mistakes=mistakes), lambda n, size: 0, 1).mistake == "everywhere"


@pytest.mark.parametrize("answer", [None, ..., lambda n, size: None])
def test_not_done(answer):
    assert run_task(BLOCKS, answer, 1).status == "not_done"


def test_a_stub_is_not_done():
    def stub(n, size):
        raise NotImplementedError("Task 99.blocks")

    assert run_task(BLOCKS, stub, 1).status == "not_done"


def test_a_wrong_value_is_reported_before_a_later_error():
    def first_wrong_then_raises(n, size):
        if n == 7:
            return 1
        raise KeyError(n)

    result = run_task(BLOCKS, first_wrong_then_raises, 1)
    assert (result.status, result.call, result.got) == ("wrong", "blocks(7, 4)", "1")


def test_an_error_names_its_call():
    result = run_task(BLOCKS, lambda n: 1, 1)
    assert result.status == "error"
    assert result.call == "blocks(7, 4)"
    assert result.got.startswith("TypeError")


def test_a_value_task_takes_the_value_itself():
    assert run_task(CAPACITY, 76, 1).passed
    assert run_task(CAPACITY, 11, 1).status == "wrong"
    assert run_task(CAPACITY, None, 1).status == "not_done"
    assert run_task(CAPACITY, 76.0, 1).status == "wrong"


def test_a_design_task_accepts_whatever_meets_its_condition():
    design = replace(CAPACITY, compare=lambda case, got: got in (8, 16))
    assert run_task(design, 16, 1).passed
    assert run_task(design, 32, 1).status == "wrong"


def test_a_class_is_driven_by_the_tasks_run():
    class Counter:
        def __init__(self):
            self.count = 0

        def add(self):
            self.count += 1
            return self.count

    def drive(answer, arguments):
        counter = answer()
        return [counter.add() for _ in range(arguments[0])]

    counting = replace(
        BLOCKS, answer="class", run=drive, visible=lambda seed: [Case((3,), [1, 2, 3])], hidden=lambda s: ()
    )
    assert run_task(counting, Counter, 1).passed
    assert run_task(counting, Counter(), 1).status == "refused"
    with pytest.raises(ValueError, match="a class needs `run`"):
        replace(BLOCKS, answer="class")


def test_a_predicate_that_raises_does_not_match():
    from servelab.course.tasks.task import Mistake

    fragile = replace(BLOCKS, mistakes=(Mistake("m", lambda case, got: got[0] == 1, "never"),))
    assert run_task(fragile, lambda n, size: 0, 1).message == ""


def test_tasks_are_found_by_id():
    assert task("99.blocks") is BLOCKS
    assert tasks("97") == ()
    with pytest.raises(ValueError, match=r"no task '99.block'; there is 99.blocks"):
        task("99.block")


def test_three_hints_are_demanded():
    with pytest.raises(ValueError, match="three hints"):
        replace(BLOCKS, hints=("one",))


def test_hidden_cases_depend_on_the_seed_and_on_nothing_else():
    def drawn(seed):
        return [case.arguments for case in BLOCKS.hidden(seed)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
