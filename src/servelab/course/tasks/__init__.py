"""Tasks: one place defines each exercise for notebooks, labs and grading."""

from importlib import import_module

from servelab.course.near import unknown
from servelab.course.tasks.task import Task
from servelab.translation import _


def task(name: str) -> Task:
    """Return the task with an id such as "01.blocks" or "lab01.crossover"; ValueError names those that are near."""
    if not isinstance(name, str):
        raise ValueError(
            _('expected the id of a task as text, as in check("01.rows", rows_computed), got {name!r:.60}').format(
                name=name
            )
        )
    part = name.partition(".")[0]
    found = {one.id: one for one in tasks(part)}
    if name not in found:
        raise ValueError(unknown("task", name, list(found)))
    return found[name]


def tasks(part: str) -> tuple[Task, ...]:
    """Return the tasks of a chapter ("01") or a lab ("lab01"), in order; empty when it has none."""
    name = f"{__name__}.{part if part.startswith('lab') else 'ch' + part}"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return ()
    found: tuple[Task, ...] = module.TASKS
    return found
