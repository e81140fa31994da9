"""Predict, then see: a question is answered before its result, and the gap between them is explained."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from servelab.course import content
from servelab.course.content.form import Prediction
from servelab.course.markup import block, fill, inline, is_number, number, plain_number
from servelab.course.record import learner_record, now, solved_edition
from servelab.course.session import announce, listen
from servelab.translation import _


def predict(name: str) -> None:
    """Ask the question with this id. What the learner commits is kept, and shown again when the cell runs again.

    ValueError when there is no such prediction.
    """
    question = content.prediction(name)
    if solved_edition():
        from servelab.course.display import box, show_html

        choices = "".join(f"<li>{inline(choice.text)}</li>" for choice in question.choices)
        body = block(question.question) + (f"<ul>{choices}</ul>" if choices else "")
        show_html(box(_("Predict"), body), _("Predict: {question}").format(question=question.question))
        return
    _Asking(question)


class _Asking:
    """The card of one question: open, or committed, or skipped."""

    def __init__(self, question: Prediction) -> None:
        from servelab.course.card import Card
        from servelab.course.display import show_widget

        self.question = question
        self.card = Card(on_action=self.act)
        self.refresh()
        listen(f"prediction:{question.id}", "predict", self.refresh)
        show_widget(self.card, _("Prediction {id}: run this cell to answer.").format(id=question.id))

    def refresh(self) -> None:
        entry = entry_of(self.question)
        if entry is None:
            self._ask()
            return
        body = block(self.question.question)
        if entry.get("skipped"):
            message = _("Skipped. The result is open below, once its cell has run.")
        else:
            answer = answer_html(self.question, entry["value"])
            body += f"<p>{_('You predict:')} <strong>{answer}</strong></p>"
            message = _("Committed. The result is open below, once its cell has run.")
        again = [] if entry.get("revealed") else [_button("change", _("Change"))]
        self.card.view = self._view(body, message=escape(message), buttons=again)

    def _ask(self, error: str = "", value: object = None) -> None:
        from servelab.course.card import field, options

        question = self.question
        if question.choices:
            pairs = [(choice.key, inline(choice.text)) for choice in question.choices]
            answer = field("answer", "choice", _("Your prediction"), options=options(pairs), value=value)
        else:
            answer = field("answer", "number", _("Your prediction"), unit=question.unit, value=value or "")
        self.card.view = self._view(
            block(question.question),
            fields=[answer],
            buttons=[_button("commit", _("Commit"), True), _button("skip", _("Skip"))],
            message=escape(error),
            message_tone="error",
        )

    def _view(self, body: str, **more: Any) -> dict[str, Any]:
        eyebrow = _("Predict before you run on")
        return {"label": f"{eyebrow}: {self.question.id}", "eyebrow": eyebrow, "body": body, **more}

    def act(self, action: str, values: Mapping[str, Any]) -> None:
        if action == "change":
            old = (entry_of(self.question) or {}).get("value")
            self._ask(value=old if old is None or self.question.choices else f"{old:.12g}")
            return
        entry: dict[str, Any] = {"skipped": True}
        if action == "commit":
            try:
                entry = {"value": parse(self.question, values.get("answer"))}
            except ValueError as error:
                self._ask(str(error), values.get("answer"))
                return
        entry |= {"time": now(), "chapter": self.question.id[:2]}
        learner_record().replace("predictions", self.question.id, entry)
        announce(f"prediction:{self.question.id}")


def _button(name: str, label: str, primary: bool = False) -> dict[str, Any]:
    from servelab.course.card import button

    return button(name, label, primary)


def entry_of(question: Prediction) -> dict[str, Any] | None:
    """Return what the learner committed (`value`) or skipped (`skipped`), or None; one that no longer fits is None."""
    entry = learner_record().entry("predictions", question.id)
    if entry is None or entry.get("skipped"):
        return entry
    value = entry.get("value")
    fits = value in [c.key for c in question.choices] if question.choices else is_number(value)
    return entry if fits else None


def parse(question: Prediction, answer: object) -> float | str:
    """Return what was typed as a number, or the chosen key. ValueError says to the learner what is expected."""
    if question.choices:
        if answer is None:
            raise ValueError(_("Choose one of the answers, or skip."))
        return question.choice(str(answer)).key
    typed = str(answer or "").strip()
    text = re.sub(r"[\s_]", "", typed.removesuffix(question.unit))
    if not text:
        raise ValueError(_("Type a number, or skip."))
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(_("{typed!r} is not a number. Type one such as 12 or 0.5.").format(typed=typed[:40]))
    low, high = question.low, question.high
    if (low is not None and value < low) or (high is not None and value > high):
        if low is None or high is None:
            words = _("Type a number that is not less than {low}.") if high is None else _("Type at most {high}.")
        else:
            words = _("Type a number from {low} to {high}.")
        raise ValueError(words.format(low=number(low or 0), high=number(high or 0)))
    return value


def answer_html(question: Prediction, value: Any) -> str:
    """Return a prediction or a result as HTML."""
    return inline(answer_text(question, value)) if question.choices else escape(answer_text(question, value))


def answer_text(question: Prediction, value: Any) -> str:
    """Return a prediction or a result in words: a choice's own, or the number as a reader wants it, with its unit."""
    return question.choice(value).text if question.choices else f"{number(value)} {question.unit}".strip()


@dataclass(frozen=True)
class Outcome:
    """A result and the values that its explanation is filled with."""

    question: Prediction
    actual: float | str
    values: Mapping[str, Any]

    def explanation(self) -> str:
        """The explanation with its values."""
        return fill(self.question.explanation, self.values, self.question.id)

    def why(self, key: str) -> str:
        """Why a choice is right or wrong."""
        return fill(self.question.choice(key).why, self.values, self.question.id)


def reveal(name: str, actual: Any, *shown: Any) -> None:
    """Show the result of a prediction beside it; folded until the learner commits or skips, when it unfolds by itself.

    `actual` is a number, the key of a choice, or a dict: its "actual" is the number, and all of it fills the
    placeholders of the explanation. `shown` are figures, widgets or text that belong to the result, or functions
    without arguments that make them: ``lambda: PageTableWidget(trace)`` keeps a widget, which sends its state to the
    browser when it is made, from being made too early. Nothing else of the result reaches the browser before the
    commit. ValueError when the explanation needs a value that is missing.
    """
    result = outcome(content.prediction(name), actual)
    if solved_edition():
        from servelab.course.unfolded import show_solved

        show_solved(result, shown)
        return
    _Folded(result, shown)


def outcome(question: Prediction, actual: Any) -> Outcome:
    """Return the outcome of a question from what `reveal` was given; ValueError names what is missing."""
    given = plain_number(actual)
    values = {name: plain_number(value) for name, value in (given if isinstance(given, Mapping) else {}).items()}
    found: Any = values.get("actual") if isinstance(given, Mapping) else given
    if question.choices and not (isinstance(found, str) and any(found == c.key for c in question.choices)):
        if isinstance(found, str):
            question.choice(found)
        marked = [choice.key for choice in question.choices if choice.right]
        if not marked and question.decide is None:
            raise ValueError(f"{question.id}: expected the key of the right choice, got {found!r}")
        values.setdefault("actual", found)
        found = question.decide(values) if question.decide else marked[0]
        question.choice(found)
    elif not question.choices and not is_number(found):
        raise ValueError(f'{question.id}: expected a number or a dict with a number as "actual", got {actual!r}')
    values.setdefault("actual", question.choice(found).text if question.choices else found)
    result = Outcome(question, found, values)
    result.explanation()
    for choice in question.choices:
        result.why(choice.key)
    return result


class _Folded:
    """A result that waits for the learner's commit."""

    def __init__(self, result: Outcome, shown: tuple[Any, ...]) -> None:
        from ipywidgets import VBox

        from servelab.course.card import Card
        from servelab.course.display import show_widget

        self.result = result
        self.shown = shown
        self.open = False
        self.box = VBox([Card({"tone": "folded", **self._folded_view()})])
        self.box.add_class("servelab-fold")
        listen(f"prediction:{result.question.id}", "reveal", self.refresh)
        self.refresh()
        show_widget(self.box, _("The result of prediction {id}: run this cell.").format(id=result.question.id))

    def _folded_view(self) -> dict[str, Any]:
        words = _("The result is ready. Commit your prediction above, or skip it, and it unfolds here.")
        return {"label": _("Folded result"), "eyebrow": _("Folded"), "body": f"<p>{escape(words)}</p>"}

    def refresh(self) -> None:
        from servelab.course.unfolded import unfold

        entry = entry_of(self.result.question)
        if entry is None or self.open:
            return
        self.open = True
        self.box.children = unfold(self.result, entry, self.shown)
        learner_record().update("predictions", self.result.question.id, lambda old: old.update(revealed=True))
        announce(f"prediction:{self.result.question.id}")
