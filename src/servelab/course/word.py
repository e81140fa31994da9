"""Words: a learner's own, marked by three points; and the field's, in English and Chinese."""

from collections.abc import Mapping
from html import escape
from typing import Any

from servelab.course import content
from servelab.course.content.form import GlossaryTerm, OwnWords
from servelab.course.markup import block, inline
from servelab.course.near import unknown
from servelab.course.record import learner_record, now, solved_edition
from servelab.course.session import announce
from servelab.translation import _

FEWEST_CHARACTERS = 20


def own_words(name: str) -> None:
    """Ask for an answer in one's own words, then show three points to mark it by; text and marks are kept.

    ValueError when there is no such question.
    """
    question = content.own_words(name)
    if solved_edition():
        from servelab.course.display import box, details, show_html

        points = "".join(f"<li>{inline(point)}</li>" for point in question.points)
        body = block(question.question) + details(_("Three points to mark yourself by"), f"<ol>{points}</ol>")
        show_html(box(_("In your own words"), body), question.question)
        return
    from servelab.course.display import show_widget

    show_widget(Writing(question).card, _("In your own words, {id}: run this cell to write.").format(id=name))


class Writing:
    """The card of one question: first the text alone, then the text beside the points."""

    def __init__(self, question: OwnWords) -> None:
        from servelab.course.card import Card

        self.question = question
        self.card = Card(on_action=self.act)
        entry = learner_record().entry("words", question.id) or {}
        self.show(str(entry.get("text", "")), list(entry.get("marks", ())), bool(entry.get("text")))

    def show(self, text: str, marks: list[str], committed: bool, message: str = "", tone: str = "info") -> None:
        """Draw the card; the points are in it only once a text was committed."""
        from servelab.course.card import button, field, options

        fields = [field("text", "text", _("Your answer"), value=text, rows=5)]
        buttons = [button("commit", _("Show the points to mark it by"), True)]
        if committed:
            points = options([(str(i), inline(point)) for i, point in enumerate(self.question.points)])
            fields.append(field("marks", "marks", _("Tick what your answer says"), options=points, value=marks))
            buttons = [button("save", _("Save"), True)]
        eyebrow = _("In your own words")
        self.card.view = {
            "label": f"{eyebrow}: {self.question.id}",
            "eyebrow": eyebrow,
            "body": block(self.question.question),
            "fields": fields,
            "buttons": buttons,
            "message": escape(message),
            "message_tone": tone,
        }

    def act(self, action: str, values: Mapping[str, Any]) -> None:
        """Keep the text, and the marks once there are points."""
        text = str(values.get("text", "")).strip()
        given = values.get("marks")
        marks = [str(mark) for mark in given] if isinstance(given, list) else []
        if len(text) < FEWEST_CHARACTERS:
            committed = action == "save"
            self.show(text, marks, committed, _("Write a sentence or two first, as if to a colleague."), "error")
            return
        entry = {"text": text, "marks": marks, "time": now()}
        learner_record().replace("words", self.question.id, entry)
        announce(f"words:{self.question.id}")
        saved = _("Saved: {count} of 3 points.").format(count=len(marks)) if action == "save" else ""
        self.show(text, marks, True, saved)


def glossary(term: str | None = None) -> None:
    """Show the words of the field with their Chinese names, all of them or one (by any of its names, in any case)."""
    from servelab.course.display import box, show_html

    found = terms()
    if term is not None:
        wanted = term.strip().casefold()
        found = [one for one in found if wanted in [name.casefold() for name in (one.term, one.chinese, *one.also)]]
        if not found:
            print(unknown(_("term"), term, [name for one in terms() for name in (one.term, *one.also)]))
            return
    names = (_("English"), _("中文"), _("In plain words"))
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_names(one)}</th>'
        f'<td lang="zh" style="{_CELL};white-space:nowrap">{escape(one.chinese)}</td>'
        + f'<td style="{_CELL}">{inline(one.plain)}</td></tr>'
        for one in found
    )
    style = "border-collapse:collapse;table-layout:auto;width:100%"
    table = f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    show_html(box(_("Words"), table, "plain"), "\n".join(f"{one.term} ({one.chinese}): {one.plain}" for one in found))


_CELL = "text-align:left;vertical-align:top;padding:4px 12px 4px 0"


def _names(one: GlossaryTerm) -> str:
    also = f'<br><span style="font-weight:400">{escape(", ".join(one.also))}</span>' if one.also else ""
    return escape(one.term) + also


def terms() -> list[GlossaryTerm]:
    """Return every chapter's terms, by name; a term that two chapters explain keeps its first explanation."""
    found: dict[str, GlossaryTerm] = {}
    for chapter in content.chapters():
        for one in chapter.glossary:
            found.setdefault(one.term.casefold(), one)
    return [found[name] for name in sorted(found)]
