"""Chapter 00's content: the hand example and every number in the readiness check are what the formulas give."""

import math

import pytest
import torch

from servelab.costs import MODEL_SPECS
from servelab.course import content
from servelab.course.content.ch00.primer import KEYS, QUERY, VALUES, attention_output, attention_table

CHAPTER = content.chapter("00")


def right(item_id: str) -> str:
    """The text of the right choice of a readiness question."""
    return next(ready.item.right.text for ready in CHAPTER.readiness if ready.item.id == item_id)


def test_the_hand_example_is_what_torch_computes() -> None:
    query, keys, values = (torch.tensor(x, dtype=torch.float64) for x in ([QUERY], KEYS, VALUES))
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values)[0]
    assert attention_output() == pytest.approx(expected.tolist())


def test_the_table_shows_every_intermediate_value() -> None:
    rows = attention_table().splitlines()[2:]
    assert len(rows) == 3
    weights = [float(row.split("|")[7]) for row in rows]
    assert sum(weights) == pytest.approx(1, abs=2e-3)
    assert float(rows[2].split("|")[5]) == pytest.approx(3 / math.sqrt(2), abs=1e-3)


def test_readiness_has_six_questions_and_each_miss_has_a_primer_of_ten_minutes() -> None:
    assert len(CHAPTER.readiness) == 6
    assert {ready.primer for ready in CHAPTER.readiness} == {primer.id for primer in CHAPTER.primers}
    assert all(primer.minutes == 10 for primer in CHAPTER.primers)


def test_the_numbers_of_the_readiness_check_are_recomputed() -> None:
    spec = MODEL_SPECS["SmolLM2-135M"]
    assert right("slower-clock") == f"{1e3 * max(1e9 / 50e9, 1e9 / 200e9):.0f} ms"
    assert right("sharing") == str(spec.num_query_heads // spec.num_kv_heads)
    assert right("numbers-kept") == str(2 * spec.num_kv_heads * spec.head_dim)
    assert right("per-weight") == "2"


def test_the_quiz_has_three_different_times_and_the_right_one_is_the_memory_time() -> None:
    item = next(item for item in CHAPTER.quizzes[0].items if item.id == "faster-arithmetic")
    texts = [choice.text for choice in item.choices]
    assert len(set(texts)) == len(texts)
    assert item.right.text == f"{1e3 * (2 * MODEL_SPECS['SmolLM2-135M'].num_parameters + 23040) / 100e9:.1f} ms"
