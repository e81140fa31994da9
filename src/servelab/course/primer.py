"""The readiness check of chapter 00: six questions, and a primer of ten minutes for each miss."""

from collections.abc import Mapping
from html import escape
from typing import Any

from servelab.course import content
from servelab.course.content.form import Chapter, Quiz
from servelab.course.markup import block, inline
from servelab.course.question import Asking, solved_item
from servelab.course.record import solved_edition
from servelab.translation import _


def readiness() -> None:
    """Ask chapter 00's readiness questions; each miss offers a primer. Answers are kept."""
    chapter = content.chapter("00")
    if solved_edition():
        _show_solved(chapter)
        return
    from servelab.course.display import show_widget

    show_widget(Readiness(chapter).card, _("Readiness check: run this cell to answer."))


class Readiness(Asking):
    """The readiness questions in a card; afterwards the primers, those for missed questions first."""

    def __init__(self, chapter: Chapter) -> None:
        self.chapter = chapter
        self.primers = {primer.id: primer for primer in chapter.primers}
        questions = Quiz("00.readiness", _("Are you ready?"), tuple(ready.item for ready in chapter.readiness))
        super().__init__(questions, "readiness", False, self._sum_up)

    def missed(self, answers: Mapping[str, Any]) -> list[str]:
        """Return the ids of the primers that the answers ask for, in order."""
        wrong = [r.primer for r in self.chapter.readiness if answers[r.item.id]["choice"] != r.item.right.key]
        return list(dict.fromkeys(wrong))

    def _sum_up(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        from servelab.course.card import button

        missed = self.missed(answers)
        if missed:
            words = _("Read what you missed before you go on: {minutes} minutes in all.").format(
                minutes=sum(self.primers[name].minutes for name in missed)
            )
        else:
            words = _("You are ready: go on. The primers are here if you want them.")
        names = missed or list(self.primers)
        buttons = [
            button(f"primer:{name}", _("Read: {title}").format(title=self.primers[name].title), name in missed)
            for name in names
        ]
        return {"tone": "result", "eyebrow": self.quiz.title, "body": block(words), "buttons": buttons}

    def act(self, action: str, values: Mapping[str, Any]) -> None:
        """Open a primer, close it, or do what any quiz does."""
        if action.startswith("primer:"):
            self._read(action.removeprefix("primer:"))
        elif action == "close":
            self.go_on()
        else:
            super().act(action, values)

    def _read(self, name: str) -> None:
        from servelab.course.card import button

        primer = self.primers[name]
        eyebrow = _("Primer · {minutes} minutes").format(minutes=primer.minutes)
        body = f"<h4>{inline(primer.title)}</h4>{block(primer.body)}"
        self.card.view = {
            "label": primer.title,
            "eyebrow": eyebrow,
            "body": body,
            "buttons": [button("close", _("Back to the list"), True)],
        }


def _show_solved(chapter: Chapter) -> None:
    from servelab.course.display import box, details, show_html

    items = "".join(solved_item(ready.item) for ready in chapter.readiness)
    primers = "".join(
        details(f"{inline(p.title)} ({escape(_('{minutes} minutes').format(minutes=p.minutes))})", block(p.body))
        for p in chapter.primers
    )
    words = "\n".join(ready.item.question for ready in chapter.readiness)
    show_html(box(_("Are you ready?"), f"<ol>{items}</ol>{primers}"), words)
