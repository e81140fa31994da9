"""Goals as a checklist that is ticked by evidence: what was predicted, passed, answered, written."""

from collections.abc import Mapping
from html import escape
from typing import Any

from servelab.course import content
from servelab.course.content.form import Chapter
from servelab.course.markup import inline
from servelab.course.record import learner_record, solved_edition
from servelab.course.session import listen
from servelab.course.tasks import tasks
from servelab.translation import _


def goals(number: str) -> None:
    """Show a chapter's goals; each is ticked by itself once its evidence is there. ValueError: no such chapter."""
    chapter = content.chapter(number)
    title = _("What you will be able to do")
    words = f"{title}: " + " ".join(goal.text for goal in chapter.goals)
    if solved_edition():
        from servelab.course.display import box, show_html

        show_html(box(title, "<ul>" + "".join(f"<li>{inline(g.text)}</li>" for g in chapter.goals) + "</ul>"), words)
        return
    from servelab.course.card import Card
    from servelab.course.display import show_widget

    card = Card()

    def refresh() -> None:
        data = learner_record().read()
        rows = [row(inline(g.text), all(done(e, data) for e in g.evidence)) for g in chapter.goals]
        card.view = {"label": title, "eyebrow": title, "body": checklist(rows), "tone": "plain"}

    refresh()
    listen("*", f"goals:{number}", refresh)
    show_widget(card, words)


def progress() -> None:
    """Show how far the learner is in each chapter: predictions, self-tests, quiz questions, own words."""
    from servelab.course.display import box, show_html

    data = learner_record().read()
    heads = (_("Chapter"), _("Predictions"), _("Self-tests"), _("Quiz"), _("Own words"), _("Goals"))
    rows = [[f"{c.number} {c.title}", *counts(c, data)] for c in content.chapters()]
    cell = "text-align:left;padding:4px 14px 4px 0"
    head = "".join(f'<th scope="col" style="{cell}">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row" style="{cell}">{escape(name)}</th>'
        + "".join(f'<td style="{cell}">{escape(value)}</td>' for value in values)
        + "</tr>"
        for name, *values in rows
    )
    table = f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    show_html(box(_("Your progress"), table, "plain"), "\n".join("  ".join(row) for row in [list(heads), *rows]))


def counts(chapter: Chapter, data: Mapping[str, Any]) -> list[str]:
    """Return "done of all" for each kind of evidence of a chapter, and for its goals."""
    groups = [
        [done(f"prediction:{one.id}", data) for one in chapter.predictions],
        [done(f"task:{one.id}", data) for one in tasks(chapter.number)],
        [item.id in data["quizzes"].get(quiz.id, {}) for quiz in chapter.quizzes for item in quiz.items],
        [done(f"words:{one.id}", data) for one in chapter.own_words],
        [all(done(e, data) for e in goal.evidence) for goal in chapter.goals],
    ]
    words = _("{done} of {all}")
    return [words.format(done=sum(group), all=len(group)) if group else "–" for group in groups]


def done(evidence: str, data: Mapping[str, Any]) -> bool:
    """Whether the record `data` holds a piece of evidence such as "prediction:01.kv-curve"; a skip is none."""
    kind, _colon, name = evidence.partition(":")
    if kind == "prediction":
        return "value" in data["predictions"].get(name, {})
    if kind == "task":
        return "passed" in data["checks"].get(name, {})
    if kind == "words":
        return bool(data["words"].get(name, {}).get("text"))
    if kind == "readiness":
        return all(r.item.id in data["readiness"].get("00.readiness", {}) for r in content.chapter("00").readiness)
    return all(item.id in data["quizzes"].get(name, {}) for item in content.quiz(name).items)


def row(text: str, ticked: bool) -> str:
    """Return one line of a checklist; the state is said in words for a screen reader."""
    mark, words, kind = ("✓", _("done"), "servelab-done") if ticked else ("○", _("not yet"), "servelab-open")
    tick = f'<span class="servelab-tick" role="img" aria-label="{escape(words)}">{mark}</span>'
    return f'<li class="{kind}">{tick}<span>{text}</span></li>'


def checklist(rows: list[str]) -> str:
    """Return rows as a list."""
    return f'<ul class="servelab-checklist">{"".join(rows)}</ul>'
