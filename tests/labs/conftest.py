"""The labs as files, their answers as objects, and the parameters of the tests: every lab, task and wrong answer."""

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from servelab.course.tasks import task, tasks
from servelab.course.tasks.task import Task

LABS = Path(__file__).resolve().parents[2] / "labs"
LAB_NAMES = [path.parent.name for path in sorted(LABS.glob("[0-9][0-9]_*/source.py"))]


@dataclass(frozen=True)
class WrongAnswer:
    """A file of `labs/NN_slug/wrong/`: the task it is meant for, the words meant for it, and the answer."""

    path: Path

    @property
    def header(self) -> dict[str, str]:
        return dict(re.findall(r"^# (task|says): (.*)$", self.path.read_text(encoding="utf-8"), re.MULTILINE))

    @property
    def task(self) -> Task:
        return task(self.header["task"])

    def answer(self) -> Any:
        return runpy.run_path(str(self.path), run_name="handed_in")[self.task.name]


@cache
def _answers(name: str, edition: str) -> dict[str, Any]:
    path = LABS / name / ("solution.ipynb" if edition == "solution" else f"{name}.ipynb")
    names: dict[str, Any] = {"__name__": "handed_in"}
    for cell in nbformat.read(path, as_version=4).cells:
        is_answer = cell.metadata.get("nbgrader", {}).get("solution")
        if cell.cell_type == "code" and (is_answer or "def reported" in cell.source):
            exec(compile(cell.source, f"<{cell.id}>", "exec"), names)
    return names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    lab_tasks = [one for name in LAB_NAMES for one in tasks(f"lab{name[:2]}")]
    wrong = [WrongAnswer(path) for path in sorted(LABS.glob("[0-9][0-9]_*/wrong/*.py"))]
    if "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", LAB_NAMES)
    if "lab_task" in metafunc.fixturenames:
        metafunc.parametrize("lab_task", lab_tasks, ids=[one.id for one in lab_tasks])
    if "wrong" in metafunc.fixturenames:
        metafunc.parametrize("wrong", wrong, ids=[one.path.stem for one in wrong])


@pytest.fixture(scope="session")
def labs() -> Path:
    return LABS


@pytest.fixture(scope="session")
def handed_in() -> Callable[[Task, str], Any]:
    """A function: the answer to a task in an edition of its lab, "solution" or "learner"."""

    def of(one: Task, edition: str) -> Any:
        name = next(name for name in LAB_NAMES if name[:2] == one.id[3:5])
        return _answers(name, edition)[one.name]

    return of
