"""Quiz: an answer and how sure one is are committed before the reveal; every option is then explained."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from servelab.course import content
from servelab.course.content.form import Quiz, QuizItem
from servelab.course.markup import block, inline
from servelab.course.record import learner_record, now, solved_edition
from servelab.course.session import announce
from servelab.course.unfolded import why_list, why_row
from servelab.translation import _

LEVELS = ("guess", "fairly", "certain")


def level_name(level: str) -> str:
    """Return how sure a learner is, in words."""
    return {"guess": _("I guess"), "fairly": _("Fairly sure"), "certain": _("Certain")}[level]


def quiz(name: str) -> None:
    """Ask a chapter's questions one at a time; answers are kept, and a rerun goes on where it stopped.

    `name` is "01" for the chapter's own quiz, or "01.retrieval". ValueError when there is none.
    """
    questions = content.quiz(name)
    if solved_edition():
        from servelab.course.display import box, show_html

        body = f"<ol>{''.join(solved_item(item) for item in questions.items)}</ol>"
        words = "\n".join(item.question for item in questions.items)
        show_html(box(_("Quiz"), f"<p><strong>{inline(questions.title)}</strong></p>{body}"), words)
        return
    from servelab.course.display import show_widget

    asking = Asking(questions, "quizzes", True, lambda answers: summary(questions, answers))
    show_widget(asking.card, _("Quiz {id}: run this cell to answer.").format(id=name))


def solved_item(item: QuizItem) -> str:
    """Return a question as a list item, its answer in a part that folds."""
    from servelab.course.display import details

    choices = "".join(f"<li>{inline(choice.text)}</li>" for choice in item.choices)
    rows = [why_row(choice.text, choice.why, choice.right, False) for choice in item.choices]
    return f"<li>{block(item.question)}<ul>{choices}</ul>{details(_('Answer'), why_list(rows))}</li>"


class Asking:
    """Goes through questions in a card. `section` is where in the record the answers are kept, by the quiz's id."""

    def __init__(
        self, questions: Quiz, section: str, confidence: bool, finish: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> None:
        from servelab.course.card import Card

        self.quiz = questions
        self.section = section
        self.confidence = confidence
        self.finish = finish
        self.at = 0
        self.card = Card(on_action=self.act)
        self.go_on()

    def answers(self) -> dict[str, Any]:
        """Return what was answered and still fits a question: item id to {"choice", "confidence", "time"}."""
        entry = learner_record().entry(self.section, self.quiz.id) or {}
        keys = {item.id: {choice.key for choice in item.choices} for item in self.quiz.items}
        return {name: a for name, a in entry.items() if isinstance(a, dict) and a.get("choice") in keys.get(name, ())}

    def go_on(self) -> None:
        """Ask the first question that has no answer; after the last, sum up."""
        answered = self.answers()
        for index, item in enumerate(self.quiz.items):
            if item.id not in answered:
                self.at = index
                self.ask()
                return
        self.at = len(self.quiz.items)
        from servelab.course.card import button

        view = self.finish(answered)
        buttons = [*view.get("buttons", ()), button("look", _("Look at the answers again"))]
        self.card.view = {**view, "label": self.quiz.title, "buttons": buttons}

    def ask(self, error: str = "", values: Mapping[str, Any] | None = None) -> None:
        """Show the question at hand."""
        from servelab.course.card import button, field, options

        item, old = self.quiz.items[self.at], values or {}
        pairs = [(choice.key, inline(choice.text)) for choice in item.choices]
        fields = [field("answer", "choice", _("Your answer"), options=options(pairs), value=old.get("answer"))]
        if self.confidence:
            levels = options([(level, escape(level_name(level))) for level in LEVELS])
            old_level = old.get("confidence")
            label = _("How sure are you?")
            fields.append(field("confidence", "choice", label, options=levels, value=old_level, inline=True))
        self.card.view = {
            **self._head(item),
            "fields": fields,
            "buttons": [button("commit", _("Commit"), True)],
            "message": escape(error),
            "message_tone": "error",
        }

    def explain(self) -> None:
        """Show the question at hand with its answer."""
        from servelab.course.card import button

        item = self.quiz.items[self.at]
        answer = self.answers()[item.id]
        right = answer["choice"] == item.right.key
        rows = [why_row(c.text, c.why, c.right, c.key == answer["choice"]) for c in item.choices]
        message = _("Right.") if right else _("Not right.")
        if self.confidence:
            message += " " + _("You said: {level}.").format(level=level_name(answer["confidence"]))
        last = self.at + 1 == len(self.quiz.items)
        self.card.view = {
            **self._head(item, why_list(rows)),
            "tone": "result" if right else "question",
            "message": escape(message),
            "message_tone": "good",
            "buttons": [button("next", _("Sum up") if last else _("Next question"), True)],
        }

    def _head(self, item: QuizItem, more: str = "") -> dict[str, Any]:
        where = _("{title} · question {number} of {count}").format(
            title=self.quiz.title, number=self.at + 1, count=len(self.quiz.items)
        )
        return {"label": where, "eyebrow": where, "body": block(item.question) + more}

    def act(self, action: str, values: Mapping[str, Any]) -> None:
        """Do what a button asks."""
        if action == "commit":
            self._commit(values)
        elif action == "next":
            self.at += 1
            if self.at < len(self.quiz.items) and self.quiz.items[self.at].id in self.answers():
                self.explain()
            else:
                self.go_on()
        elif action == "look":
            self.at = 0
            self.explain()

    def _commit(self, values: Mapping[str, Any]) -> None:
        item = self.quiz.items[self.at]
        chosen, level = values.get("answer"), values.get("confidence")
        if chosen not in {choice.key for choice in item.choices}:
            self.ask(_("Choose an answer first."), values)
            return
        if self.confidence and level not in LEVELS:
            self.ask(_("Say how sure you are, too."), values)
            return
        answer = {"choice": chosen, "right": chosen == item.right.key, "time": now()}
        if self.confidence:
            answer["confidence"] = level
        learner_record().update(self.section, self.quiz.id, lambda entry: entry.setdefault(item.id, answer))
        announce(f"{self.section}:{self.quiz.id}")
        self.explain()


def summary(questions: Quiz, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view that sums up: how many were right, at each level of confidence."""
    right = {item.id: answers[item.id]["choice"] == item.right.key for item in questions.items}
    rows = []
    for level in reversed(LEVELS):
        names = [name for name, answer in answers.items() if answer.get("confidence") == level]
        if names:
            rows.append((level_name(level), len(names), sum(right[name] for name in names)))
    head = "".join(f'<th scope="col">{escape(t)}</th>' for t in (_("How sure"), _("Questions"), _("Right")))
    cells = "".join(
        f'<tr><th scope="row">{escape(n)}</th><td>{count}</td><td>{good}</td></tr>' for n, count, good in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
    words = _("**{right} of {count} right.** {advice}").format(
        right=sum(right.values()), count=len(right), advice=calibration(right, answers)
    )
    return {"tone": "result", "eyebrow": questions.title, "body": block(words) + table}


def calibration(right: Mapping[str, bool], answers: Mapping[str, Any]) -> str:
    """Return a sentence on whether the learner's confidence can be trusted."""
    sure_wrong = sum(answers[name]["confidence"] == "certain" and not good for name, good in right.items())
    lucky = sum(answers[name]["confidence"] == "guess" and good for name, good in right.items())
    if sure_wrong:
        return _("You were certain and wrong in {count}: look at those first, nothing else will warn you.").format(
            count=sure_wrong
        )
    if lucky:
        return _("You guessed {count} that were right: say in your own words why they are.").format(count=lucky)
    return (
        _("What you were certain of was right: you can trust that feeling here.")
        if all(right.values())
        else _("You knew where you were not sure: those are the ones to look at.")
    )
