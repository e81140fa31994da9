"""The solution passes every task, the starter none, and each wrong answer fails with the words meant for it."""

import copy
import dataclasses

import pytest

from servelab.course.assignment import run_assignment_task
from servelab.course.selftest import describe
from servelab.course.tasks import tasks

SEED, HIDDEN_SEED = 10, 12  # the card of seed 10 is bound by its step, so that forgetting the step shows
OWN_NUMBERS = ("lab01.plan", "lab02.waste")  # marked on the learner's own numbers alone


@pytest.mark.parametrize("seed", [0, SEED, 123_456])
def test_solution_passes(lab_task, handed_in, seed):
    result = run_assignment_task(lab_task, handed_in(lab_task, "solution"), seed, seed + 1)
    assert result.passed, describe(lab_task, result)


def test_starter_is_not_done_yet(lab_task, handed_in):
    result = run_assignment_task(lab_task, handed_in(lab_task, "learner"), SEED, HIDDEN_SEED)
    assert result.status == "not_done"
    assert describe(lab_task, result).startswith("Not done yet")


def test_wrong_answer_fails_with_its_message(wrong):
    quick = (
        dataclasses.replace(wrong.task, seconds=min(wrong.task.seconds, 1.5))
        if "ends" in wrong.path.stem
        else wrong.task
    )
    result = run_assignment_task(quick, wrong.answer(), SEED, HIDDEN_SEED)
    assert not result.passed
    assert wrong.header["says"] in describe(quick, result)


def test_messages_give_no_answer_away(lab_task):
    """What is said about a wrong value never holds the expected one."""
    seen = {str(case.expected) for case in lab_task.cases(SEED) if type(case.expected) is int}
    words = " ".join(mistake.message for mistake in lab_task.mistakes) + " ".join(lab_task.hints)
    assert not seen & set(words.split())


def test_every_task_has_wrong_answers_with_different_messages(lab_task, labs):
    texts = [path.read_text(encoding="utf-8") for path in labs.glob("*/wrong/*.py")]
    mine = [text for text in texts if text.startswith(f"# task: {lab_task.id}\n")]
    assert len({text.splitlines()[1] for text in mine}) >= 5


def test_every_mistake_is_met_by_a_wrong_answer(lab_task, labs):
    """A message that no listed wrong answer brings out is a message that nobody has tried."""
    said = [text.splitlines()[1][8:] for text in (p.read_text(encoding="utf-8") for p in labs.glob("*/wrong/*.py"))]
    untried = [one.name for one in lab_task.mistakes if not any(words in one.message for words in said)]
    assert not untried


def test_remembering_the_cases_it_was_checked_on_does_not_pass(lab_task, handed_in):
    """Marking draws other hidden cases than `check` did; the tasks without any are those of the next test."""
    if not lab_task.hidden(0):
        assert lab_task.id in OWN_NUMBERS
        return
    solution = handed_in(lab_task, "solution")
    seen = [case.arguments for case in lab_task.cases(SEED)]
    known = {repr(arguments): lab_task.run(solution, copy.deepcopy(arguments)) for arguments in seen}
    remembering = dataclasses.replace(lab_task, run=lambda answer, arguments: known[repr(arguments)])
    assert run_assignment_task(remembering, solution, SEED, SEED).passed
    assert not run_assignment_task(remembering, solution, SEED, HIDDEN_SEED).passed


def test_a_neighbours_numbers_do_not_pass(handed_in):
    """Where many answers are right, those that were worked out for one learner's numbers fail for most others."""
    for one in (one for lab in ("lab01", "lab02") for one in tasks(lab) if one.id in OWN_NUMBERS):
        mine = one.run(handed_in(one, "solution"), one.visible(1)[0].arguments)
        passed = [run_assignment_task(one, lambda *_, mine=mine: mine, seed, seed).passed for seed in range(1, 9)]
        assert passed[0]
        assert sum(passed) <= 2
