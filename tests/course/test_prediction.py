import json

import numpy as np
import pytest

from servelab.course import content, predict, reveal
from servelab.course.prediction import outcome, parse
from servelab.course.record import learner_record

SECONDS = {"actual": 64.2, "tokens": 64}
POOL = {"hole": 7, "free": 19}


def text(card) -> str:
    return json.dumps(card.view, ensure_ascii=False)


@pytest.fixture
def asked(shown, widget_of):
    return lambda name: widget_of(shown(predict, name)[0])


@pytest.fixture
def folded(shown, widget_of):
    return lambda *arguments: widget_of(shown(reveal, *arguments)[0])


def test_nothing_of_the_result_reaches_the_browser_before_the_commit(shown, browser_sees):
    import plotly.graph_objects as go

    outputs = shown(predict, "99.seconds") + shown(predict, "99.pool")
    figure = go.Figure(go.Scatter(x=[1], y=[64.2], name="SECRET-FIGURE"))
    outputs += shown(reveal, "99.seconds", SECONDS, figure, "SECRET-TEXT") + shown(reveal, "99.pool", POOL)
    seen = browser_sees(outputs)
    assert "How many seconds" in seen
    assert "SECRET" not in seen
    assert "64.2" not in seen


def test_a_commit_above_unfolds_the_result_below(asked, folded, shown, browser_sees):
    card = asked("99.seconds")
    box = folded("99.seconds", SECONDS)
    assert len(box.children) == 1
    assert "unfolds here" in text(box.children[0])
    card.act("commit", answer="12")
    body = box.children[0].view["body"]
    for words in ("You predicted", "12 s", "Counted", "64.2 s", "5.35", "Too low, by a factor of 5.35", "SECRET-LOW"):
        assert words in body
    assert "token 64 computes the 64 tokens" in body
    assert "SECRET-HIGH" not in body


def test_what_is_shown_unfolds_inside(asked, folded):
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 4]))
    figure.update_layout(meta={"alt": "A curve.", "sentence": "It grows with the square."})
    box = folded("99.seconds", SECONDS, figure, "And **so**.")
    asked("99.seconds").act("skip")
    numbers, picture, caption, words, why = box.children
    assert "You skipped" in text(numbers)
    assert "application/vnd.plotly.v1+json" in picture.outputs[0]["data"]
    assert "It grows with the square." in caption.value
    assert "A curve." in caption.value
    assert "<strong>so</strong>" in words.value
    assert "SECRET-WHY" in text(why)


def test_a_widget_is_made_when_the_result_unfolds(asked, folded, browser_sees):
    from ipywidgets import Label

    box = folded("99.seconds", SECONDS, lambda: Label("SECRET-STATE"))
    assert "SECRET-STATE" not in browser_sees([])
    asked("99.seconds").act("commit", answer="12")
    assert box.children[1].value == "SECRET-STATE"


def test_a_rerun_keeps_the_commitment_and_shows_it(asked, folded):
    asked("99.seconds").act("commit", answer="12")
    assert "You predict: <strong>12 s</strong>" in asked("99.seconds").view["body"]
    assert "fields" not in asked("99.seconds").view
    assert "64.2 s" in text(folded("99.seconds", SECONDS).children[0])


def test_it_is_kept_with_time_and_chapter(asked, data_folder):
    asked("99.seconds").act("commit", answer="12")
    entry = json.loads((data_folder / "progress.json").read_text())["predictions"]["99.seconds"]
    assert entry["value"] == 12
    assert entry["chapter"] == "99"
    assert entry["time"][:2] == "20"


def test_a_commitment_can_be_changed_until_the_result_is_open(asked, folded):
    card = asked("99.seconds")
    card.act("commit", answer="1,200,000")
    assert [button["name"] for button in card.view["buttons"]] == ["change"]
    card.act("change")
    assert card.view["fields"][0]["value"] == "1200000"
    card.act("commit", answer="60")
    folded("99.seconds", SECONDS)
    assert card.view["buttons"] == []
    card.act("change")
    assert "fields" not in card.view
    assert learner_record().entry("predictions", "99.seconds")["value"] == 60


def test_a_skip_is_kept_as_a_skip(asked):
    card = asked("99.pool")
    card.act("skip")
    assert "Skipped" in card.view["message"]
    assert "value" not in learner_record().entry("predictions", "99.pool")


def test_a_rejected_number_stays_in_the_field(asked):
    card = asked("99.seconds")
    card.act("commit", answer="about 12 or so")
    assert card.view["message_tone"] == "error"
    assert "is not a number" in card.view["message"]
    assert card.view["fields"][0]["value"] == "about 12 or so"
    assert learner_record().entry("predictions", "99.seconds") is None


def test_what_a_learner_types_is_no_markup(asked):
    card = asked("99.seconds")
    card.act("commit", answer="<img src=x>")
    assert "<img" not in card.view["message"]


@pytest.mark.parametrize(
    ("typed", "value"),
    [("12", 12), (" 12.5 s ", 12.5), ("1,200", 1200), ("1 200", 1200), ("1e3", 1000), ("1_000", 1000), ("１２", 12)],
)
def test_numbers_as_people_type_them(typed, value):
    assert parse(content.prediction("99.seconds"), typed) == value


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "Type a number"),
        (None, "Type a number"),
        ("abc", "is not a number"),
        ("nan", "is not a number"),
        ("inf", "is not a number"),
        ("0,5", "is not a number"),
        ("-1", "not less than 0"),
    ],
)
def test_what_is_no_answer_says_what_is(typed, words):
    with pytest.raises(ValueError, match=words):
        parse(content.prediction("99.seconds"), typed)


def test_a_choice_must_be_one_of_the_choices():
    with pytest.raises(ValueError, match="Choose one"):
        parse(content.prediction("99.pool"), None)
    with pytest.raises(ValueError, match="expected one of"):
        parse(content.prediction("99.pool"), "other")


def test_a_choice_is_right_or_wrong_and_each_is_explained(asked, folded):
    asked("99.pool").act("commit", answer="contiguous")
    body = folded("99.pool", POOL).children[0].view["body"]
    assert "Not this one." in body
    assert "Your choice, wrong" in body
    for words in ("the largest hole is 7 slots of 19", "SECRET-A: they lie in holes of 7", "SECRET-B", "SECRET-C"):
        assert words in body


def test_a_right_choice_is_said_to_be_right(asked, folded):
    asked("99.pool").act("commit", answer="paged")
    body = folded("99.pool", POOL).children[0].view["body"]
    assert "Right." in body
    assert "Right, your choice" in body


def test_the_result_may_be_a_key_decided_or_marked():
    assert outcome(content.prediction("99.pool"), POOL).actual == "paged"
    assert outcome(content.prediction("99.pool"), {"actual": "none", **POOL}).actual == "none"
    assert outcome(content.prediction("99.wins"), {"ratio": 3}).actual == "a"
    assert outcome(content.prediction("99.wins"), {"ratio": np.float32(0.5)}).actual == "b"


@pytest.mark.parametrize(
    ("name", "actual", "words"),
    [
        ("99.seconds", 64.2, "needs 'tokens'"),
        ("99.seconds", "fast", "expected a number"),
        ("99.seconds", {"tokens": 64}, "expected a number"),
        ("99.seconds", {"actual": True, "tokens": 64}, "expected a number"),
        ("99.pool", {"hole": 7}, "needs 'free'"),
        ("99.pool", "other", "expected one of"),
        ("99.second", 1, "there is 99.seconds"),
    ],
)
def test_a_wrong_reveal_is_an_error_for_its_author_even_while_folded(name, actual, words):
    with pytest.raises(ValueError, match=words):
        reveal(name, actual)


@pytest.mark.parametrize(
    ("predicted", "actual", "words"),
    [
        ("64", 64, "Exactly right"),
        ("60", 64, "Close"),
        ("128", 64, "Too high, by a factor of 2"),
        ("0", 64, "64 away"),
        ("64", 0, "64 away"),
    ],
)
def test_the_gap_is_said_in_words(asked, folded, predicted, actual, words):
    asked("99.seconds").act("commit", answer=predicted)
    assert words in folded("99.seconds", {"actual": actual, "tokens": 64}).children[0].view["body"]


def test_a_commitment_that_no_longer_fits_is_asked_again(asked):
    learner_record().replace("predictions", "99.pool", {"value": "gone"})
    assert asked("99.pool").view["fields"]


def test_an_action_without_a_button_does_nothing(asked):
    card = asked("99.seconds")
    card.act("change")
    card.act("nonsense", answer=3)
    assert learner_record().entry("predictions", "99.seconds") is None


def test_the_solved_edition_shows_question_result_and_why_without_a_kernel(solved, shown):
    outputs = shown(predict, "99.pool") + shown(reveal, "99.pool", POOL) + shown(reveal, "99.seconds", SECONDS)
    assert [sorted(bundle) for bundle in outputs] == [["text/html", "text/plain"]] * 3
    html = "".join(bundle["text/html"] for bundle in outputs)
    for words in ("Which pool takes", "<details open>", "The paged one", "SECRET-A", "64.2 s", "token 64 computes"):
        assert words in html
    assert "You predicted" not in html
    assert "You skipped" not in html


def test_the_words_of_a_result_are_rounded_as_its_card_is(solved, shown):
    (bundle,) = shown(reveal, "99.seconds", {**SECONDS, "actual": 64.19999999})
    assert bundle["text/plain"].startswith("Counted: 64.2 s. ")


def test_a_measured_result_names_its_machine():
    from servelab.course import machine
    from servelab.course.unfolded import result_label

    assert result_label(content.prediction("99.wins")) == f"Measured on {machine()}"
    assert result_label(content.prediction("99.pool")) == "Calculated"
