"""A learner's lab: numbers of their own, checks while they work, and the marking cell.

Where the numbers come from. Two words go in: the course's seed, which the teacher sets and the notebook names, and
the learner's name or number, which they type into the first cell. The same two words give the same numbers on every
machine. Whoever learns alone leaves the name empty. A grader that knows who handed in sets ``SERVELAB_LEARNER`` (and
``SERVELAB_COURSE_SEED``), which take precedence over what the notebook says.

Marking draws other hidden cases than `Assignment.check` did, from ``SERVELAB_GRADING_SEED`` where the teacher has
set one, so that an answer that remembers the cases it was checked on does not pass.
"""

import hashlib
import os
from importlib import import_module
from typing import Any

from servelab.course.near import unknown
from servelab.course.record import count, learner_record, now
from servelab.course.selftest import describe
from servelab.course.tasks import tasks
from servelab.course.tasks.judge import judge
from servelab.course.tasks.observe import observe
from servelab.course.tasks.task import Result, Task
from servelab.translation import _


def seed_of(*words: str) -> int:
    """A seed below 2**31 from words; capitals and outer spaces do not matter."""
    text = "\n".join(word.strip().casefold() for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def run_assignment_task(task: Task, answer: Any, seed: int, hidden_seed: int) -> Result:
    """Run a task on the visible cases of one seed (the learner's numbers) and the hidden cases of another."""
    cases = [*task.visible(seed), *task.hidden(hidden_seed)]
    return judge(task, cases, observe(task, answer, [case.arguments for case in cases]))


class Assignment:
    """One lab of one learner. `number` is "01"; ``constants`` are this learner's numbers (read them, do not type them).

    Raises ValueError when there is no such lab.
    """

    def __init__(self, number: str, learner: str = "", course_seed: str = "servelab") -> None:
        self.number = number
        self.learner = os.environ.get("SERVELAB_LEARNER", learner).strip()
        self.course_seed = os.environ.get("SERVELAB_COURSE_SEED", course_seed).strip()
        self.tasks = tasks(f"lab{number}")
        if not self.tasks:
            raise ValueError(f"expected the number of a lab, such as '01', got {number!r}")
        self.seed = seed_of(self.course_seed, self.learner)
        self.constants: dict[str, Any] = import_module(f"servelab.course.tasks.lab{number}").constants(self.seed)

    def check(self, name: str, answer: Any) -> None:
        """Check an answer and print what came of it; "kv-bytes" is the task ``lab01.kv-bytes``."""
        task = self.task(name)
        result = run_assignment_task(task, answer, self.seed, self.seed)
        learner_record().update("checks", task.id, lambda entry: _note(entry, result))
        print(describe(task, result))

    def grade(self, name: str, answer: Any) -> None:
        """Mark an answer: AssertionError that says what `check` would say, unless every case agrees."""
        task = self.task(name)
        secret = os.environ.get("SERVELAB_GRADING_SEED", "graded")
        result = run_assignment_task(task, answer, self.seed, seed_of(self.course_seed, self.learner, secret))
        if not result.passed:
            raise AssertionError(describe(task, result))
        print(_("{points} of {points} points: {title}").format(points=task.points, title=task.title))

    def task(self, name: str) -> Task:
        """The task with this short name; ValueError names those that are near."""
        found = {task.id.partition(".")[2]: task for task in self.tasks}
        if name not in found:
            raise ValueError(unknown("task", name, list(found)))
        return found[name]


def _note(entry: dict[str, Any], result: Result) -> None:
    if result.status != "not_done":
        entry["attempts"] = count(entry, "attempts") + 1
    if result.passed:
        entry.setdefault("passed", now())
