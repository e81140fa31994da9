"""Compares what an answer did with what was expected, and says what probably went wrong."""

from collections.abc import Sequence
from typing import Any

from servelab.course.tasks.compare import Comparison
from servelab.course.tasks.observe import Observation
from servelab.course.tasks.task import Case, Mistake, Result, Status, Task
from servelab.translation import _


def judge(task: Task, cases: Sequence[Case], observations: Sequence[Observation]) -> Result:
    """Judge the observations of `cases`, in order; they may stop early at one that brought no value.

    An answer whose first result is None, where something else was expected, counts as not done.
    """
    right = 0
    wrong: list[tuple[int, Any]] = []
    for index, seen in enumerate(observations):
        if seen.outcome != "value":
            if wrong:
                break
            return _stopped(task, cases, index, seen, right)
        if index == 0 and seen.value is None and not _none_is_right(task, cases[0]):
            return _stopped(task, cases, 0, Observation("not_done", text="None", printed=seen.printed), 0)
        if _agrees(task, cases[index], seen.value):
            right += 1
        else:
            wrong.append((index, seen.value))
    if wrong:
        return _wrong(task, cases, wrong, right, observations)
    return Result(task.id, "passed", right, len(cases))


def _none_is_right(task: Task, case: Case) -> bool:
    return isinstance(task.compare, Comparison) and case.expected is None


def _agrees(task: Task, case: Case, got: Any) -> bool:
    if isinstance(task.compare, Comparison):
        return task.compare(case.expected, got)
    return task.compare(case, got) is True


def _wrong(
    task: Task, cases: Sequence[Case], wrong: list[tuple[int, Any]], right: int, observations: Sequence[Observation]
) -> Result:
    index, got, mistake = _explain(task, cases, wrong)
    return Result(
        task.id,
        "wrong",
        right,
        len(cases),
        index,
        task.show(cases[index]),
        shorten(got),
        mistake=mistake.name if mistake else "",
        message=mistake.message if mistake else _type_message(cases[index].expected, got, task),
        printed=observations[index].printed,
    )


def _explain(task: Task, cases: Sequence[Case], wrong: list[tuple[int, Any]]) -> tuple[int, Any, Mistake | None]:
    """The first wrong case that has a known mistake or a wrong type; of several mistakes the one that explains most."""
    for index, got in wrong:
        known = [mistake for mistake in task.mistakes if _matches(mistake, cases[index], got)]
        if known:
            counts = [sum(_matches(mistake, cases[i], value) for i, value in wrong) for mistake in known]
            return index, got, known[counts.index(max(counts))]
        if _type_message(cases[index].expected, got, task):
            return index, got, None
    return (*wrong[0], None)


def _matches(mistake: Mistake, case: Case, got: Any) -> bool:
    if type(got) is bool and type(case.expected) in (int, float):
        return False
    try:
        return bool(mistake.matches(case, got))
    except Exception:
        return False


def _type_message(expected: Any, got: Any, task: Task) -> str:
    if not isinstance(task.compare, Comparison):
        return ""
    names = {
        bool: "bool",
        int: "int",
        float: "float",
        str: "str",
        list: "list",
        tuple: "list",
        dict: "dict",
        set: "set",
    }
    kind = names.get(type(expected), type(expected).__name__)
    found = "None" if got is None else type(got).__name__
    if kind == found or (kind == "float" and found == "int"):
        return ""
    return _("The type is not right: expected {expected}, got {got}.").format(expected=kind, got=found)


def _stopped(task: Task, cases: Sequence[Case], index: int, seen: Observation, right: int) -> Result:
    status: Status = "error"
    got, message = seen.text, ""
    if seen.outcome == "not_done":
        status = "not_done"
        got = ""
        if seen.text == "None":
            message = _("It returns None. When you have written it: is there a `return`?")
    elif seen.outcome == "too_slow":
        status = "too_slow"
        message = _("It was stopped after {seconds:g} s. Does every loop come to its end?").format(seconds=task.seconds)
    elif seen.outcome == "not_plain":
        status = "wrong"
        got = _("an object of type {type}").format(type=seen.text)
        message = _("Return plain numbers, strings, lists or dicts; a generator needs list(...) around it.")
    elif seen.outcome == "refused":
        status, message = "refused", _refusal(task, seen.text)
    call = task.show(cases[index]) if cases and status != "refused" else ""
    return Result(
        task.id, status, right, len(cases), index if call else -1, call, got, seen.line, "", message, seen.printed
    )


def _refusal(task: Task, found: str) -> str:
    if found.startswith("type "):
        what = {"function": _("a function"), "class": _("a class"), "value": _("a value")}[task.answer]
        return _("Pass {what} named {name}, without calling it; this is of {type}.").format(
            what=what, name=task.name, type=found
        )
    if found.partition(".")[0] == "servelab":
        return _("This uses {module}, which is servelab's own. Write yours; you can compare afterwards.").format(
            module=found
        )
    may = ", ".join(task.allowed_imports) or _("the standard library's small ones, such as math")
    return _("This uses {module}. An answer to this task may import: {allowed}.").format(module=found, allowed=may)


def shorten(value: Any, limit: int = 200) -> str:
    """`repr` of plain data on one line of at most `limit` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits in decimal
        return _("something too long to show")
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
