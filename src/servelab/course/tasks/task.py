"""The form of a task: how it is called, its cases, how results are compared, what to say when they differ.

One definition serves the notebook's `check`, the labs and the grader. A task file (``tasks/chNN.py``,
``tasks/labNN.py``) holds ``TASKS = (Task(...), ...)``. In small::

    from servelab.course.tasks.task import Case, Comparison, Mistake, Task, draw
    from servelab.translation import _

    def _blocks(num_tokens: int, block_size: int) -> int:
        return -(-num_tokens // block_size)

    def _hidden(seed: int) -> list[Case]:
        rng = draw(seed, "01.blocks")
        return [Case((n, 4), _blocks(n, 4)) for n in rng.sample(range(1, 200), 6)] + [Case((64, 16), 4)]

    TASKS = (
        Task(
            id="01.blocks",
            title=_("Blocks for a request"),
            kind="fill", points=2, minutes=5, difficulty="easy",
            call="blocks(num_tokens, block_size)",
            visible=lambda seed: [Case((7, 4), 2), Case((8, 4), 2)],
            hidden=_hidden,
            mistakes=(
                Mistake("rounds down", lambda case, got: got == case.arguments[0] // case.arguments[1],
                        _("The tokens that do not fill a block need a block too.")),
                Mistake("one too many", lambda case, got: got == case.arguments[0] // case.arguments[1] + 1,
                        _("Look at a length that fills its last block exactly.")),
            ),
            hints=(_("How many blocks do 9 tokens need?"), _("blocks x size is never less than the tokens."),
                   _("divide; if something is left, add one")),
        ),
    )

A task may ask for a function (default), a class (give `run`, which drives it and returns plain data) or a value
(a case without arguments). A design task that accepts many answers gives ``compare=lambda case, got: ...``.
Results are turned into plain data first (`plain`), so `got` in a predicate is an exact int, float, str, bool,
None, list (tuples become lists), dict or set; numpy and torch values arrive as numbers and lists.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from servelab.course.content.form import Difficulty
from servelab.course.tasks.compare import Comparison

Kind = Literal["fill", "debug", "design", "measure"]
Answer = Literal["function", "class", "value"]
Status = Literal["passed", "not_done", "wrong", "error", "too_slow", "refused"]

STANDARD_IMPORTS = (
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
)


def draw(seed: int, task_id: str) -> random.Random:
    """Return a generator that depends on the learner's seed and on the task, the same on every machine."""
    return random.Random(f"{seed}:{task_id}")


@dataclass(frozen=True)
class Case:
    """Arguments and the expected result, both plain data.

    `call` is how the call is shown, where ``name(arguments)`` does not say it well:
    ``Case(([("A", 7), ("B", 2)],), [[0, 1], [2]], call="place A (7 tokens), then B (2 tokens)")``
    """

    arguments: tuple[Any, ...]
    expected: Any
    call: str = ""


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong answer: `matches(case, got)` recognises it, `message` says what it probably is.

    The message gives the idea away, never the value. `got` is plain data. A predicate that raises does not match.
    """

    name: str
    matches: Callable[[Case, Any], bool]
    message: str


def call_function(answer: Any, arguments: tuple[Any, ...]) -> Any:
    """Call the learner's function: the default `Task.run`."""
    return answer(*arguments)


@dataclass(frozen=True)
class Task:
    """One exercise.

    `call` is its signature as text; the name in it is what messages show. `visible(seed)` and `hidden(seed)` give
    cases; visible ones stand in the exercise's text, hidden ones are drawn from the learner's seed (`draw`).
    `run(answer, arguments)` produces the result inside the limits; it sees no expected value, so the grader may
    run it in a sandbox. `compare` is a `Comparison`, or ``(case, got) -> bool`` for tasks with many right answers.
    `hints` are three: a question, an invariant, pseudo-code. `allowed_imports` are the modules (with what is below
    them) that an answer may use besides `STANDARD_IMPORTS`. `seconds` limits each case.
    """

    id: str
    title: str
    kind: Kind
    points: int
    minutes: int
    difficulty: Difficulty
    call: str
    visible: Callable[[int], Sequence[Case]]
    hints: tuple[str, str, str]
    hidden: Callable[[int], Sequence[Case]] = lambda seed: ()
    answer: Answer = "function"
    run: Callable[[Any, tuple[Any, ...]], Any] = call_function
    compare: Comparison | Callable[[Case, Any], bool] = field(default_factory=Comparison)
    mistakes: tuple[Mistake, ...] = ()
    allowed_imports: tuple[str, ...] = ()
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if len(self.hints) != 3:
            raise ValueError(f"Task {self.id}: expected three hints, got {len(self.hints)}")
        if self.answer == "class" and self.run is call_function:
            raise ValueError(f"Task {self.id}: a class needs `run`, which drives it and returns plain data")

    @property
    def name(self) -> str:
        """The name that the learner defines."""
        return self.call.partition("(")[0].strip()

    def cases(self, seed: int) -> list[Case]:
        """Visible cases, then the ones drawn for this seed."""
        return [*self.visible(seed), *self.hidden(seed)]

    def show(self, case: Case) -> str:
        """How the call of a case is written in a message."""
        if case.call:
            return case.call
        if self.answer == "value":
            return self.call
        return f"{self.name}({', '.join(map(repr, case.arguments))})"


@dataclass(frozen=True)
class Result:
    """What came of a task. `case_index` is the case that `call` and `got` are about, -1 if none is.

    `got` is text, cut to a line; `mistake` is the name and `message` the sentence of the recognised mistake (or what
    to do about the status). `printed` is what the learner's code printed in that case. `num_right` cases of
    `num_cases` agreed; the run stops at the first error, so it may be less than could have agreed.
    """

    task_id: str
    status: Status
    num_right: int = 0
    num_cases: int = 0
    case_index: int = -1
    call: str = ""
    got: str = ""
    line: str = ""
    mistake: str = ""
    message: str = ""
    printed: str = ""

    @property
    def passed(self) -> bool:
        """Whether every case agreed."""
        return self.status == "passed"


def run_task(task: Task, answer: Any, seed: int) -> Result:
    """Run every case of a task on an answer and judge it: `observe` each case, then `judge`."""
    from servelab.course.tasks.judge import judge
    from servelab.course.tasks.observe import observe

    cases = task.cases(seed)
    return judge(task, cases, observe(task, answer, [case.arguments for case in cases]))
