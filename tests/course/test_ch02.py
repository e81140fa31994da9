"""Chapter 02: every self-test passes its solution and fails each plausible mistake with a message of its own; the
numbers in the texts are recomputed."""

import math
import re
from pathlib import Path

import pytest

from servelab.cache import KVCacheManager
from servelab.costs import MODEL_SPECS, blocks_needed, kv_cache_bytes_per_token, requests_that_fit
from servelab.course import content
from servelab.course.content.ch02.load import (
    BLOCK_SIZE,
    QUESTION_TOKENS,
    SYSTEM_TOKENS,
    blocks_of_answers,
    tokens_taken_over,
)
from servelab.course.content.ch02.quiz import QUIZ, RETRIEVAL
from servelab.course.tasks import task
from servelab.course.tasks.task import run_task

SEEDS = (0, 1, 7, 20_260)
POOL_BYTES = 512 * 2**20
SMOLLM2_BYTES = 23_040


def slot(block_table, position, block_size):
    return block_table[position // block_size] * block_size + position % block_size


def blocks(num_tokens, block_size):
    return math.ceil(num_tokens / block_size)


def waste(lengths, block_size):
    return sum(blocks(length, block_size) * block_size - length for length in lengths)


def one_based_slot(block_table, position, block_size):
    return slot(block_table, max(0, position - 1), block_size)


def padded_once(lengths, block_size):
    return blocks(sum(lengths), block_size) * block_size - sum(lengths)


def match(prompt, cached, block_size, *, last=0, compare=True, stop=True):
    found = []
    for end in range(block_size, len(prompt) + last, block_size):
        prefix = prompt[:end]
        entry = cached.get(sum(prefix))
        if entry is not None and (not compare or entry[0] == prefix):
            found.append(entry[1])
        elif stop:
            break
    return found


def each_block_alone(prompt, cached, size):
    """Looks a block up by its own tokens, as if what stands before it did not matter."""
    found = []
    for start in range(0, len(prompt) - size, size):
        entry = cached.get(sum(prompt[start : start + size]))
        if entry is None or entry[0] != prompt[start : start + size]:
            break
        found.append(entry[1])
    return found


SOLUTIONS = {"02.slot": slot, "02.blocks": blocks, "02.waste": waste, "02.match": match}
WRONG = {
    "02.slot": {
        "no table": lambda table, position, size: position,
        "block, not slot": lambda table, position, size: table[position // size],
        "no offset": lambda table, position, size: table[position // size] * size,
        "block plus offset": lambda table, position, size: table[position // size] + position % size,
        "counts from one": one_based_slot,
    },
    "02.blocks": {
        "rounds down": lambda tokens, size: tokens // size,
        "one too many": lambda tokens, size: tokens // size + 1,
        "a fraction": lambda tokens, size: tokens / size,
        "slots": lambda tokens, size: math.ceil(tokens / size) * size,
    },
    "02.waste": {
        "a whole block at the boundary": lambda lengths, size: sum(size - length % size for length in lengths),
        "one padding for all": padded_once,
        "used instead of empty": lambda lengths, size: sum(length % size for length in lengths),
        "all slots": lambda lengths, size: sum(blocks(length, size) * size for length in lengths),
        "the bound": lambda lengths, size: len(lengths) * (size - 1),
        "a share": lambda lengths, size: waste(lengths, size) / max(1, sum(lengths)),
    },
    "02.match": {
        "the whole prompt": lambda *given: match(*given, last=1),
        "trusts the hash": lambda *given: match(*given, compare=False),
        "goes on after a gap": lambda *given: match(*given, stop=False),
        "the first block only": each_block_alone,
        "logical blocks": lambda *given: list(range(len(match(*given)))),
        "a count": lambda *given: len(match(*given)) * given[-1],
    },
}
MISTAKES = [(name, mistake) for name, answers in WRONG.items() for mistake in answers]


def untouched(*arguments):
    raise NotImplementedError("Task: write this part")


@pytest.mark.parametrize("name", SOLUTIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_solution_passes_and_the_stub_is_not_done(name, seed):
    assert run_task(task(name), SOLUTIONS[name], seed).passed
    assert run_task(task(name), untouched, seed).status == "not_done"


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mistake_is_told_apart_from_the_others(name, mistake, seed):
    result = run_task(task(name), WRONG[name][mistake], seed)
    assert not result.passed
    assert result.mistake == mistake
    others = [one.message for one in task(name).mistakes if one.name != mistake]
    assert result.message
    assert result.message not in others


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_message_gives_no_expected_value_away(name, mistake):
    result = run_task(task(name), WRONG[name][mistake], 0)
    expected = task(name).cases(0)[result.case_index].expected
    numbers = re.findall(r"\d+", result.message)
    assert str(expected) not in numbers or expected in (0, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_prefixes_of_the_hidden_cases_have_sums_of_their_own(seed):
    for case in task("02.match").cases(seed):
        prompt, cached, _ = case.arguments
        assert len(cached) in (1, 2, 3, 4)
        assert all(key == sum(prefix) for key, (prefix, _) in cached.items())
        assert min(prompt) >= 0


@pytest.mark.parametrize("name", SOLUTIONS)
def test_every_mistake_that_a_task_knows_is_tried_here(name):
    assert {one.name for one in task(name).mistakes} == set(WRONG[name])


@pytest.mark.parametrize("name", SOLUTIONS)
def test_our_own_answer_is_not_accepted(name):
    assert run_task(task(name), blocks_needed, 0).status == "refused"


def test_the_prediction_of_the_ninth_token_knows_every_block():
    prediction = content.prediction("02.ninth")
    assert prediction.decide is not None
    assert [prediction.decide({"actual": block}) for block in (1, 2, 3, 6)] == ["same", "next", "free", "free"]


def test_the_capacity_prediction_states_what_fits():
    assert kv_cache_bytes_per_token(MODEL_SPECS["SmolLM2-135M"]) == SMOLLM2_BYTES
    reserved = requests_that_fit(POOL_BYTES, SMOLLM2_BYTES, 300, reserved_tokens=2048)
    assert f"holds {reserved} requests" in content.prediction("02.capacity").question
    assert "76" not in content.prediction("02.capacity").question


def test_the_prediction_of_a_hit_computes_what_the_cache_does():
    """The cache manager itself says how many tokens a second prompt takes over."""
    manager = KVCacheManager(num_blocks=200, block_size=BLOCK_SIZE, prefix_caching=True)
    system = list(range(SYSTEM_TOKENS))
    first, second = ([*system, *range(start, start + QUESTION_TOKENS)] for start in (5000, 6000))
    manager.allocate("first", len(first))
    manager.cache_full_blocks("first", first)
    taken = len(manager.match_prefix(second)) * BLOCK_SIZE
    assert taken == tokens_taken_over(len(second), SYSTEM_TOKENS, BLOCK_SIZE)
    text = content.prediction("02.hit").explanation
    assert f"{taken // BLOCK_SIZE} of them, {taken} tokens" in text
    assert str(len(second) - taken) not in re.findall(r"\d+", content.prediction("02.hit").question)


def test_several_answers_own_as_many_blocks_as_the_manager_says():
    manager = KVCacheManager(num_blocks=40, block_size=16, prefix_caching=True)
    manager.allocate("0", 40)
    for answer in "123":
        manager.fork("0", answer)
    for answer in "0123":
        manager.copy_on_write(answer, 40)
        manager.allocate(answer, 46)
    assert manager.pool.num_blocks - manager.num_free == blocks_of_answers(40, 6, 4, 16)


def test_the_prediction_of_the_copy_knows_how_many_there_were():
    decide = content.prediction("02.copy").decide
    assert decide is not None
    assert [decide({"actual": copies}) for copies in (0, 1, 2)] == ["place", "one", "both"]


def right(quiz, item):
    return next(one.right.text for one in quiz.items if one.id == item)


def test_the_quiz_answers_are_right():
    assert right(RETRIEVAL, "kv-bytes") == f"{300 * SMOLLM2_BYTES / 1e6:.1f} MB"
    assert right(QUIZ, "slot") == str(9 * 8 + 1)
    assert right(QUIZ, "prefix") == str((96 - 1) // 16 * 16)
    assert right(QUIZ, "answers") == str(40 // 16 + 4 * (math.ceil(46 / 16) - 40 // 16))
    paged = (POOL_BYTES // SMOLLM2_BYTES // 16) // math.ceil(1900 / 16)
    assert right(QUIZ, "long-requests") == f"About {paged / (POOL_BYTES // SMOLLM2_BYTES // 2048):.2f} times"
    assert (40 + 8) % 16 == 0, "token 49 begins a block"


def test_the_right_answer_does_not_always_stand_in_the_same_place():
    for quiz in (RETRIEVAL, QUIZ):
        places = [[choice.right for choice in item.choices].index(True) for item in quiz.items]
        assert len(set(places)) >= 2
        assert max(map(places.count, places)) <= len(places) / 2 + 1


def test_the_formulas_of_sharing_are_evaluated_rightly():
    """The chapter's own output beside the functions that these tests check."""
    notebook = (Path(__file__).parents[2] / "notebooks" / "02_paged_attention.ipynb").read_text(encoding="utf-8")
    taken_over = tokens_taken_over(prompt=7, common=5, block_size=4)
    assert f"C, by hand: 4 × min(5 // 4, 6 // 4) = {taken_over} tokens taken over" in notebook
    shared, all_of_one = 1000 // 16, blocks_needed(1100, 16)
    together = blocks_of_answers(1000, 100, 8, 16)
    assert f"{shared} + 8 × ({all_of_one} - {shared}) = {together} blocks" in notebook
    assert f"without sharing {8 * all_of_one}" in notebook
