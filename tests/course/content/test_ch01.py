"""Chapter 01's content: every number in its questions is recomputed, and every choice reads differently."""

import pytest

from servelab.costs import GPU_SPECS, MODEL_SPECS
from servelab.course import content
from servelab.course.content.form import QuizItem

CHAPTER = content.chapter("01")


def item(quiz: str, name: str) -> QuizItem:
    return next(one for one in content.quiz(quiz).items if one.id == name)


def test_the_numbers_of_the_crossover_question_are_the_models() -> None:
    question = content.prediction("01.crossover").question
    for number in ("134,515,008", "269,030,016", "30 layers", "3 KV heads", "23,040"):
        assert number in question


def test_the_right_answers_are_recomputed() -> None:
    assert item("01.retrieval", "whole-wait").right.text == f"{0.3 + 25 * 0.04:.2f} s"
    assert item("01", "rows").right.text == str(100 + 101 + 102)
    assert item("01", "qwen-bytes").right.text == f"{36 * 2 * 8 * 128 * 2:,}"
    assert item("01", "llama-heavier").right.text == f"The cache, {40 * 4096 * 131_072 / 1e9:.1f} GB"
    assert item("01", "three-seats").right.text == f"{10 + 5} steps, {100 * 35 / (3 * 15):.0f} %"


def test_the_card_with_fewer_flops_reads_faster() -> None:
    x, y = GPU_SPECS["T4"], GPU_SPECS["L4"]
    assert x.flops_per_s["float16"] < y.flops_per_s["float16"]
    assert x.bandwidth_bytes_per_s > y.bandwidth_bytes_per_s
    assert 2 * MODEL_SPECS["Qwen3-0.6B"].num_parameters < x.memory_bytes
    assert item("01", "two-chips").right.key == "y"


@pytest.mark.parametrize("quiz", ["01.retrieval", "01"])
def test_every_choice_reads_differently(quiz: str) -> None:
    for one in content.quiz(quiz).items:
        assert len({choice.text for choice in one.choices}) == len(one.choices), one.id
        assert len({choice.why for choice in one.choices}) == len(one.choices), one.id


@pytest.mark.parametrize(
    ("free", "largest", "key"),
    [(19, 7, "refused"), (19, 9, "anywhere")],
)
def test_the_hole_question_is_decided_by_the_run(free: int, largest: int, key: str) -> None:
    decide = content.prediction("01.hole").decide
    assert decide is not None
    assert decide({"free": free, "largest": largest, "needed": 9}) == key


def test_a_seat_that_waits_is_counted_as_the_question_says() -> None:
    outputs = (7, 2, 9, 3)
    steps = max(outputs[:2]) + max(outputs[2:])
    assert (steps, round(100 * sum(outputs) / (2 * steps))) == (16, 66)
    assert ", ".join(map(str, outputs[:3])) in content.prediction("01.idle").question
