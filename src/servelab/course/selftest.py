"""Self-tests of the notebooks: plain text, the same on every machine, and never the answer."""

from typing import Any

from servelab.course.record import count, learner_record, now
from servelab.course.session import announce
from servelab.course.tasks import task
from servelab.course.tasks.task import Result, Task, run_task
from servelab.translation import _


def check(name: str, answer: Any) -> None:
    """Check an answer (a function, a class or a value, as the task asks) and print what came of it.

    Prints that it passed, that it is not done yet, or the first wrong value with the likely mistake; never what was
    expected. Cases are drawn from the learner's own seed. ValueError when there is no such task.
    """
    one = task(name)
    record = learner_record()
    result = run_task(one, answer, record.seed)
    record.update("checks", one.id, lambda entry: _note(entry, result))
    announce(f"task:{one.id}")
    print(describe(one, result))


def _note(entry: dict[str, Any], result: Result) -> None:
    if result.status != "not_done":
        entry["attempts"] = count(entry, "attempts") + 1
    if result.passed:
        entry.setdefault("passed", now())


def describe(task: Task, result: Result) -> str:
    """Return what `check` prints for a result."""
    if result.passed:
        drawn = bool(task.hidden(0))
        words = _("Passed: {title}. Every case agrees, those drawn for you too.") if drawn else _("Passed: {title}.")
        return words.format(title=task.title)
    if result.status == "not_done":
        lines = [_("Not done yet: {title}.").format(title=task.title)]
        lines += [f"  {result.call}: {result.message}"] if result.message else []
    else:
        lines = [_("Not right yet: {title}.").format(title=task.title), *_what_happened(task, result)]
    lines.append(_("Stuck? hint({name!r}) gives the next of three hints.").format(name=task.id))
    # A learner's code may print half a surrogate pair, which no output stream takes.
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode("utf-8")


def _what_happened(task: Task, result: Result) -> list[str]:
    lines = []
    if task.answer != "value" and result.call:
        lines.append(_("  You call     {call}").format(call=result.call))
    if result.status == "error":
        lines.append(_("  It raises    {error}").format(error=result.got))
        if result.line:
            lines.append(_("  At line      {line}").format(line=result.line))
    elif result.status == "wrong":
        words = _("  You give     {got}") if task.answer == "value" else _("  It returns   {got}")
        lines.append(words.format(got=result.got))
    if result.printed.strip():
        printed = result.printed.strip().splitlines()
        lines += [_("  It prints    {text}").format(text=text[:100]) for text in printed[:5]]
        lines += ["               ..."] if len(printed) > 5 else []
    if result.message and result.mistake:
        lines.append(_("Likely mistake: {message}").format(message=result.message))
    elif result.message:
        lines.append(result.message)
    return lines


def hint(name: str) -> None:
    """Print the next of a task's three hints: a question, an invariant, pseudo-code; after the third, that again."""
    one = task(name)
    entry = learner_record().update("checks", one.id, _count_hint)
    shown = entry["hints"]
    print(_("Hint {number} of 3: {hint}").format(number=shown, hint=one.hints[shown - 1]))


def _count_hint(entry: dict[str, Any]) -> None:
    entry["hints"] = min(3, count(entry, "hints") + 1)
