"""Task 5: the crossover in a trace of the real engine."""

import random
from typing import Any

from servelab.course.tasks.lab01.reading import Reading, choose_weight_bytes, read
from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.course.tasks.workload import Load, describe_load, draw_load, record
from servelab.translation import _

_TOY_KV_BYTES, _TOY_WEIGHT_BYTES = 256, 107_264


def toy_load(seed: int) -> Load:
    """A load in which the toy model's KV reads overtake its weights, and not at once."""
    rng = draw(seed, "lab01.load")
    while True:
        load = _draw_load(rng)
        if read(record(load), _TOY_WEIGHT_BYTES, _TOY_KV_BYTES).first_step > 3:
            return load


def _draw_load(rng: random.Random) -> Load:
    return draw_load(
        rng, 10, (30, 70), (20, 50), 30, num_blocks=160, block_size=8, max_num_seqs=8, max_num_batched_tokens=128
    )


def _measured(reading: Reading) -> dict[str, Any]:
    return {
        "prompt_tokens": reading.prompt_tokens,
        "output_tokens": reading.output_tokens,
        "written_bytes": reading.written_bytes,
        "peak_tokens": reading.peak_tokens,
        "first_step": reading.first_step,
        "cause": reading.cause,
    }


def _measure_case(load: Load, weight_bytes: int | None, cause: str, call: str) -> Case:
    trace = record(load)
    chosen = weight_bytes or choose_weight_bytes(trace, cause)
    return Case((trace, chosen), _measured(read(trace, chosen, _TOY_KV_BYTES)), call)


def _measure_visible(seed: int) -> list[Case]:
    return [_measure_case(toy_load(seed), _TOY_WEIGHT_BYTES, "", _("measure(the trace of your load, weight_bytes)"))]


def _measure_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "lab01.measure")
    cases = []
    for cause in ("arrival", "context", "never"):
        load = _draw_load(rng)
        call = _("measure(the trace of another load: {load}; weight_bytes)").format(load=describe_load(load))
        cases.append(_measure_case(load, None, cause, call))
    return cases


def _run_measure(answer: Any, arguments: tuple[Any, ...]) -> Any:
    from servelab.trace import Trace

    return answer(Trace.from_json(arguments[0]), arguments[1])


def _reads(name: str, wrong: Any) -> Any:
    """A predicate: `got[name]` is what `wrong(reading)` gives, and not what is right."""

    def matches(case: Case, got: Any) -> bool:
        trace, weight_bytes = case.arguments
        value = wrong(read(trace, weight_bytes, _TOY_KV_BYTES))
        return bool(got[name] == value and value != case.expected[name])

    return matches


MEASURE = Task(
    id="lab01.measure",
    title=_("Task 5: the crossover in a trace"),
    kind="measure",
    points=4,
    minutes=15,
    difficulty="medium",
    call="measure(trace, weight_bytes)",
    visible=_measure_visible,
    hidden=_measure_hidden,
    run=_run_measure,
    allowed_imports=("servelab.trace",),
    mistakes=(
        Mistake(
            "keys",
            lambda case, got: type(got) is not dict or set(got) != set(case.expected),
            _("Return a dict with exactly the six names of the task."),
        ),
        Mistake(
            "prompt with output",
            _reads("prompt_tokens", lambda r: r.prompt_tokens + r.output_tokens),
            _("prompt_tokens has the output tokens in it. Keep the two apart."),
        ),
        Mistake(
            "the last token",
            _reads("written_bytes", lambda r: (r.prompt_tokens + r.output_tokens) * _TOY_KV_BYTES),
            _("You write K and V of every token. Is the last output token of a request ever computed?"),
        ),
        Mistake(
            "outputs only",
            _reads("written_bytes", lambda r: r.output_tokens * _TOY_KV_BYTES),
            _("Only output tokens are in your written_bytes. The prefill writes too."),
        ),
        Mistake(
            "slots",
            _reads("peak_tokens", lambda r: r.peak_slots),
            _("You count the slots of the blocks. peak_tokens asks for those that hold a token."),
        ),
        Mistake(
            "at the end",
            _reads("peak_tokens", lambda r: r.peak_tokens_at_end),
            _("You look when the finished requests are gone. They still hold their tokens while the step computes."),
        ),
        Mistake(
            "not before",
            _reads("first_step", lambda r: r.first_equal_step),
            _("In your first_step the KV reads equal the weights at most. Which step reads more?"),
        ),
        Mistake(
            "without the new token",
            _reads("first_step", lambda r: r.first_step_without_new),
            _("Your first_step leaves out the tokens of the step itself. Their K and V are read in it too."),
        ),
        Mistake(
            "cause",
            lambda case, got: all(got[key] == value for key, value in case.expected.items() if key != "cause"),
            _("The counts are right, the cause is not. Look at the events of that step: did anybody come in?"),
        ),
    ),
    hints=(
        _("What does one step read of a request that holds n tokens, the new one among them?"),
        _("written_bytes / kv_bytes_per_token is the sum of all scheduled tokens."),
        _("for each step: sum num_computed_tokens over its scheduled requests, at the moment 'computed'; compare"),
    ),
    seconds=10,
)
