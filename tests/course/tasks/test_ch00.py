"""Chapter 00's self-test: right answers pass, and each plausible wrong one hears what probably went wrong."""

import pytest

from servelab.course.tasks import task
from servelab.course.tasks.task import run_task

WRONG = {
    "all tokens": lambda prompt, output: prompt + output,
    "the prompt only": lambda prompt, output: prompt,
    "the output only": lambda prompt, output: output - 1,
    "one too few": lambda prompt, output: prompt + output - 2,
    "a product": lambda prompt, output: prompt * output,
}


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_a_right_answer_passes(seed: int) -> None:
    assert run_task(task("00.stored"), lambda prompt, output: prompt + output - 1, seed).passed


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_hears_its_mistake(mistake: str) -> None:
    result = run_task(task("00.stored"), WRONG[mistake], 3)
    assert result.status == "wrong"
    assert result.mistake == mistake
    expected = {m.name: m.message for m in task("00.stored").mistakes}[mistake]
    assert result.message == expected


def test_messages_differ_and_hold_no_expected_value() -> None:
    messages = [m.message for m in task("00.stored").mistakes]
    assert len(set(messages)) == len(messages) >= 2
    assert not any(character.isdigit() for message in messages for character in message)


def test_a_table_of_the_visible_cases_fails_on_the_hidden_ones() -> None:
    table = {(7, 1): 7, (2, 5): 6}
    assert not run_task(task("00.stored"), lambda prompt, output: table.get((prompt, output), 0), 5).passed
