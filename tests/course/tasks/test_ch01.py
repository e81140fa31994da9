"""Chapter 01's self-tests: right answers pass, and each plausible wrong one hears what probably went wrong."""

import pytest

from servelab.course.tasks import task
from servelab.course.tasks.task import run_task


def rows(prompt, output, cached):
    return prompt + output - 1 if cached else output * prompt + output * (output - 1) // 2


def kv_bytes(layers, heads, dim, size, prompt, output):
    return 2 * layers * heads * dim * size * (prompt + output - 1)


def hole_lengths(num_slots, taken):
    edges = [0, *(edge for start, length in sorted(taken) for edge in (start, start + length)), num_slots]
    return [after - before for before, after in zip(edges[::2], edges[1::2], strict=True)]


def in_given_order(num_slots, taken):
    largest, position = 0, 0
    for start, length in taken:
        largest, position = max(largest, start - position), start + length
    return max(largest, num_slots - position)


RIGHT = {
    "01.rows": rows,
    "01.kv-bytes": kv_bytes,
    "01.hole": lambda num_slots, taken: max(hole_lengths(num_slots, taken)),
}
WRONG = {
    "01.rows": {
        "ignores the cache": lambda p, n, cached: rows(p, n, True),
        "counts the last token": lambda p, n, cached: p + n if cached else rows(p, n + 1, False),
        "one row too many a step": lambda p, n, cached: p + n - 1 if cached else sum(p + i for i in range(1, n + 1)),
        "the prompt again and again": lambda p, n, cached: p + n - 1 if cached else p * n,
        "the prompt left out": lambda p, n, cached: n if cached else rows(p, n, False),
        "every step at full length": lambda p, n, cached: p + n - 1 if cached else (p + n) * n,
    },
    "01.kv-bytes": {
        "one of K and V": lambda *shape: kv_bytes(*shape) // 2,
        "one layer": lambda layers, *rest: kv_bytes(1, *rest),
        "numbers, not bytes": lambda layers, heads, dim, size, *rest: kv_bytes(layers, heads, dim, 1, *rest),
        "one head": lambda layers, heads, *rest: kv_bytes(layers, 1, *rest),
        "the last token": lambda *shape: kv_bytes(*shape[:5], shape[5] + 1),
        "prompt only": lambda *shape: kv_bytes(*shape[:5], 1),
        "one token": lambda *shape: kv_bytes(*shape[:4], 1, 1),
    },
    "01.hole": {
        "all free slots": lambda num_slots, taken: sum(hole_lengths(num_slots, taken)),
        "not the end": lambda num_slots, taken: max(hole_lengths(num_slots, taken)[:-1], default=0),
        "not the beginning": lambda num_slots, taken: max(hole_lengths(num_slots, taken)[1:], default=0),
        "between ranges only": lambda num_slots, taken: max(hole_lengths(num_slots, taken)[1:-1], default=0),
        "needs order": in_given_order,
        "the largest range": lambda num_slots, taken: max((length for _, length in taken), default=0),
    },
}
CASES = [(name, mistake) for name, answers in WRONG.items() for mistake in answers]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", [0, 1, 99])
def test_a_right_answer_passes(name: str, seed: int) -> None:
    result = run_task(task(name), RIGHT[name], seed)
    assert result.passed, result


@pytest.mark.parametrize("name", RIGHT)
def test_an_untouched_stub_is_not_done_yet(name: str) -> None:
    def stub(*arguments):
        raise NotImplementedError(f"Task {name}: write this part")

    assert run_task(task(name), stub, 0).status == "not_done"


@pytest.mark.parametrize(("name", "mistake"), CASES)
@pytest.mark.parametrize("seed", [0, 3, 42])
def test_a_wrong_answer_hears_its_mistake(name: str, mistake: str, seed: int) -> None:
    result = run_task(task(name), WRONG[name][mistake], seed)
    assert result.status == "wrong"
    assert result.mistake == mistake
    assert result.message == {one.name: one.message for one in task(name).mistakes}[mistake]


@pytest.mark.parametrize("name", RIGHT)
def test_every_mistake_is_tried_and_no_message_holds_a_number(name: str) -> None:
    messages = {one.name: one.message for one in task(name).mistakes}
    assert set(messages) == set(WRONG[name])
    assert len(set(messages.values())) == len(messages)
    assert not any(character.isdigit() for message in messages.values() for character in message)


@pytest.mark.parametrize("name", RIGHT)
def test_a_table_of_the_visible_cases_fails_on_the_drawn_ones(name: str) -> None:
    table = {repr(case.arguments): case.expected for case in task(name).visible(0)}
    assert not run_task(task(name), lambda *arguments: table.get(repr(arguments), 0), 5).passed


def test_the_engine_computes_the_rows_of_the_hand_example(toy_model) -> None:
    from servelab.engine import Engine, EngineConfig
    from servelab.sampling import SamplingParams
    from servelab.trace import Schedule

    engine = Engine(toy_model, EngineConfig(num_blocks=8, block_size=4))
    engine.generate([[1, 2, 3, 4, 5, 6, 7]], SamplingParams(max_tokens=5, ignore_eos=True))
    computed = [event.rows[0][1] for step in engine.trace.steps for event in step.events if isinstance(event, Schedule)]
    assert computed == [7, 1, 1, 1, 1]
    assert sum(computed) == next(case.expected for case in task("01.rows").visible(0) if case.arguments == (7, 5, True))


def test_the_hole_of_the_hand_example_is_the_managers() -> None:
    from servelab.cache import ContiguousCacheManager

    pool = ContiguousCacheManager(28, reserve="exact")
    for name, slots in (("A", 7), ("B", 2), ("C", 7), ("D", 7)):
        pool.allocate(name, slots)
    pool.free("A")
    pool.free("C")
    case = task("01.hole").visible(0)[0]
    assert case.arguments == (28, [(7, 2), (16, 7)])
    assert case.expected == pool.largest_hole == 7
    assert pool.num_free_slots == 19
