"""A result that is open: prediction and result side by side, the gap, why, and the figures that belong to it."""

from collections.abc import Mapping
from html import escape
from typing import Any

from servelab.course.content.form import Prediction
from servelab.course.markup import block, fill, inline, number
from servelab.course.prediction import Outcome, answer_html, answer_text
from servelab.translation import _


def unfold(result: Outcome, entry: Mapping[str, Any], shown: tuple[Any, ...]) -> list[Any]:
    """Return the widgets of an open result: what came out, what was shown, why."""
    from servelab.course.card import Card
    from servelab.course.picture import live_children

    numbers, why = comparison(result, entry), explanation(result, entry)
    title = _("Result · {how}").format(how=result_label(result.question))
    view = {"tone": "result", "label": title, "eyebrow": title}
    if not shown:
        return [Card({**view, "body": numbers + why})]
    children = [child for thing in shown for child in live_children(thing)]
    return [
        Card({**view, "body": numbers}),
        *children,
        Card({"tone": "result", "label": _("Why"), "eyebrow": _("Why"), "body": why}),
    ]


def show_solved(result: Outcome, shown: tuple[Any, ...]) -> None:
    """Show the result, the figures and why as a reader of the solved edition sees them."""
    from servelab.course.display import box, details, show_html
    from servelab.course.picture import show

    value = answer_html(result.question, result.actual)
    body = f"<p>{escape(result_label(result.question))}: <strong>{value}</strong></p>" + explanation(result, {})
    value_text = answer_text(result.question, result.actual)
    words = f"{result_label(result.question)}: {value_text}. {result.explanation()}"
    show_html(box("", details(_("Result"), body, is_open=True), "result"), words)
    for thing in shown:
        show(thing)


def result_name(question: Prediction) -> str:
    """What the result is called."""
    return {"measured": _("Measured"), "calculated": _("Calculated"), "counted": _("Counted")}[question.how]


def result_label(question: Prediction) -> str:
    """What the result is called; a measured one names its machine."""
    if question.how != "measured":
        return result_name(question)
    from servelab.course.hardware import machine

    return _("Measured on {machine}").format(machine=machine())


def comparison(result: Outcome, entry: Mapping[str, Any]) -> str:
    """Return prediction, result and ratio of a number as HTML, and how near it was; of a choice whether it is right."""
    question = result.question
    rows = []
    if not question.choices:
        if "value" in entry:
            rows.append((_("You predicted"), answer_html(question, entry["value"])))
        rows.append((result_name(question), answer_html(question, result.actual)))
        if "value" in entry and float(entry["value"]) and float(result.actual):
            rows.append((_("Result / prediction"), escape(number(float(result.actual) / float(entry["value"])))))
    cells = "".join(f"<div><span>{escape(label)}</span><strong>{value}</strong></div>" for label, value in rows)
    return (f'<div class="servelab-numbers">{cells}</div>' if rows else "") + block(verdict(result, entry))


def verdict(result: Outcome, entry: Mapping[str, Any]) -> str:
    """Return, as Markdown, how near the prediction was and what a gap usually comes from; "" without one."""
    question = result.question
    if entry.get("skipped"):
        return _("You skipped this prediction.")
    if "value" not in entry:
        return ""
    if question.choices:
        return _("**Right.**") if entry["value"] == result.actual else _("**Not this one.**")
    predicted, actual = float(entry["value"]), float(result.actual)
    if predicted == actual:
        return _("**Exactly right.**")
    if predicted * actual <= 0:
        return _("**The result is {difference} away from your prediction.**").format(
            difference=number(abs(actual - predicted))
        )
    ratio = actual / predicted
    if 1 / question.close <= ratio <= question.close:
        return _("**Close.**")
    words = _("**Too low, by a factor of {factor}.**") if ratio > 1 else _("**Too high, by a factor of {factor}.**")
    gap = question.too_low if ratio > 1 else question.too_high
    values = {**result.values, "predicted": predicted, "ratio": ratio}
    return f"{words.format(factor=number(max(ratio, 1 / ratio)))} {fill(gap, values, question.id)}".strip()


def explanation(result: Outcome, entry: Mapping[str, Any]) -> str:
    """Return the explanation as HTML, with why for each choice."""
    question = result.question
    rows = [
        why_row(
            inline(choice.text),
            inline(result.why(choice.key)),
            choice.key == result.actual,
            choice.key == entry.get("value"),
        )
        for choice in question.choices
    ]
    return block(result.explanation()) + why_list(rows)


def why_list(rows: list[str]) -> str:
    """Return rows of `why_row` as a list."""
    return f'<ul class="servelab-why">{"".join(rows)}</ul>' if rows else ""


def why_row(text: str, why: str, right: bool, chosen: bool) -> str:
    """Return an option and its reason (both Markdown) as HTML; right or wrong is said in words, not by colour alone."""
    marks = {
        (True, True): _("Right, your choice"),
        (True, False): _("Right"),
        (False, True): _("Your choice, wrong"),
        (False, False): _("Wrong"),
    }
    kind = "servelab-right" if right else "servelab-chosen-wrong" if chosen else "servelab-other"
    mark = f'<strong class="servelab-mark">{escape(marks[right, chosen])}</strong>'
    return f'<li class="{kind}"><div>{mark} · {inline(text)}</div><div>{inline(why)}</div></li>'
