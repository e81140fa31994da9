"""Task 5: what a crowded pool wastes, counted in a trace of the real engine."""

from collections.abc import Callable
from typing import Any

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.course.tasks.workload import Load, draw_load, record
from servelab.trace import Admit, Allocate, Preempt, State, Trace, Wait
from servelab.translation import _


def crowded_load(seed: int) -> Load:
    """A load that fills its pool: requests wait for memory and for seats, and blocks are taken while decoding."""
    rng = draw(seed, "lab02.load")
    while True:
        engine = {"num_blocks": rng.randint(9, 12), "block_size": 8, "max_num_seqs": 4, "max_num_batched_tokens": 96}
        load = draw_load(rng, 7, (10, 32), (6, 14), 8, **engine)
        trace = Trace.from_json(record(load))
        found = measured(trace)
        is_mixed = 0 < found["tails_would_do"] < found["refusals"] < _waits(trace)
        if found["refusals"] >= 3 and found["crossings"] >= 5 and is_mixed:
            return load


def measured(trace: Trace) -> dict[str, Any]:
    """The counts that the task asks for."""
    empty = [_empty_slots(trace, state) for state in trace.states("computed")]
    refused = [step for step in range(len(trace.steps)) if _refusal(trace, step)]
    would_do = sum(_tails_would_do(trace, step) for step in refused)
    return {
        "peak_blocks": max(_owned(state) for state in trace.states("computed")),
        "empty_slots": sum(empty),
        "crossings": _blocks_taken(trace, while_decoding=True),
        "refusals": len(refused),
        "tails_would_do": would_do,
        "remedy": "smaller blocks" if 2 * would_do >= len(refused) else "more memory",
    }


def _owned(state: State) -> int:
    return sum(len(request.block_table) for request in state.requests)


def _empty_slots(trace: Trace, state: State) -> int:
    return _owned(state) * trace.block_size - sum(
        request.num_computed_tokens for request in state.requests if request.block_table
    )


def _refusal(trace: Trace, step: int) -> Wait | None:
    waits = (event for event in trace.steps[step].events if isinstance(event, Wait) and event.reason == "no_memory")
    return next(waits, None)


def _tails_would_do(trace: Trace, step: int) -> bool:
    """Whether the refused request's tokens fit into all slots of the pool that hold no token."""
    wait = _refusal(trace, step)
    state = trace.state_at(step, "computed")
    stored = sum(request.num_computed_tokens for request in state.requests if request.block_table)
    return wait is not None and state.requests[wait.request].num_tokens <= trace.num_slots - stored


def _blocks_taken(trace: Trace, while_decoding: bool) -> int:
    """Blocks handed out to requests that ran already, or (not `while_decoding`) to all."""
    count = 0
    for step in trace.steps:
        admitted = {event.request for event in step.events if isinstance(event, Admit)}
        taken = [event.request for event in step.events if isinstance(event, Allocate)]
        count += sum(not (while_decoding and request in admitted) for request in taken)
    return count


def _waits(trace: Trace) -> int:
    """Steps in which somebody waits, for whatever reason."""
    return sum(isinstance(event, Wait) for step in trace.steps for event in step.events)


def _preemptions(trace: Trace) -> int:
    return sum(isinstance(event, Preempt) for step in trace.steps for event in step.events)


def _case(seed: int) -> Case:
    trace = record(crowded_load(seed))
    return Case((trace,), measured(Trace.from_json(trace)), _("measure(the trace of your load)"))


def _run(answer: Any, arguments: tuple[Any, ...]) -> Any:
    return answer(Trace.from_json(arguments[0]))


def _counts(name: str, wrong: Callable[[Trace], Any]) -> Callable[[Case, Any], bool]:
    """A predicate: `got[name]` is what `wrong(trace)` counts, and not what is right."""

    def matches(case: Case, got: Any) -> bool:
        value = wrong(Trace.from_json(case.arguments[0]))
        return bool(got[name] == value and value != case.expected[name])

    return matches


WASTE = Task(
    id="lab02.waste",
    title=_("Task 5: what your pool wastes"),
    kind="measure",
    points=4,
    minutes=20,
    difficulty="hard",
    call="measure(trace)",
    visible=lambda seed: [_case(seed)],
    run=_run,
    allowed_imports=("servelab.trace.event", "servelab.trace.record", "servelab.trace.replay"),
    mistakes=(
        Mistake(
            "keys",
            lambda case, got: type(got) is not dict or set(got) != set(case.expected),
            _("Return a dict with exactly the six names of the task."),
        ),
        Mistake(
            "free slots too",
            _counts(
                "empty_slots",
                lambda trace: sum(
                    trace.num_slots - sum(one.num_computed_tokens for one in state.requests if one.block_table)
                    for state in trace.states("computed")
                ),
            ),
            _("empty_slots: the slots of free blocks are in it. Free is not wasted; count in owned blocks only."),
        ),
        Mistake(
            "empty before computing",
            _counts("empty_slots", lambda trace: sum(_empty_slots(trace, s) for s in trace.states("scheduled"))),
            _("empty_slots: at that moment the tokens of the step are not written yet."),
        ),
        Mistake(
            "every block",
            _counts("crossings", lambda trace: _blocks_taken(trace, while_decoding=False)),
            _("crossings: the blocks of the prompts are in it. Count those of requests that ran before the step."),
        ),
        Mistake(
            "every wait",
            _counts("refusals", _waits),
            _("refusals: a request also waits for a seat or for the step's budget. Look at the reason."),
        ),
        Mistake(
            "preemptions",
            _counts("refusals", _preemptions),
            _("refusals: you count preemptions. A refusal is another event: somebody waits and does not get memory."),
        ),
        Mistake(
            "free slots are slots",
            _counts("tails_would_do", lambda trace: 0),
            _("tails_would_do: free blocks and the empty ends of owned ones count together, in slots."),
        ),
        Mistake(
            "remedy",
            lambda case, got: all(got[key] == value for key, value in case.expected.items() if key != "remedy"),
            _("The counts are right; the remedy does not follow from them. Compare tails_would_do with refusals."),
        ),
    ),
    hints=(
        _("Which events of a step hand out blocks, and which say that somebody waits?"),
        _("At the moment 'computed': slots = tokens + empty_slots of owned blocks + slots of free blocks."),
        _("for each step: state_at(step, 'computed') for blocks and tokens; its events for Admit, Allocate and Wait"),
    ),
    seconds=10,
)
