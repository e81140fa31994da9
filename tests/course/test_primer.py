import pytest

from servelab.course import readiness


@pytest.fixture
def card(shown, widget_of):
    return widget_of(shown(readiness)[0])


def answer(card, *choices):
    for choice in choices:
        card.act("commit", answer=choice)
        card.act("next")


def test_no_answer_is_shown_first(shown, browser_sees):
    seen = browser_sees(shown(readiness))
    assert "Does the K of token 1" in seen
    assert "SECRET" not in seen


def test_a_miss_offers_its_primer_and_its_minutes(card):
    answer(card, "yes", "read")
    names = [button["name"] for button in card.view["buttons"]]
    assert names == ["primer:00.attention", "look"]
    assert "10 minutes in all" in card.view["body"]


def test_a_primer_opens_in_the_card_and_closes(card):
    answer(card, "yes", "read")
    card.act("primer:00.attention")
    assert "Attention on three tokens" in card.view["body"]
    assert "<table>" in card.view["body"]
    card.act("close")
    assert "minutes in all" in card.view["body"]


def test_all_right_offers_every_primer_and_asks_for_none(card):
    answer(card, "no", "read")
    assert "You are ready" in card.view["body"]
    assert [button["primary"] for button in card.view["buttons"]] == [False, False, False]


def test_a_question_cannot_be_left_open(card):
    card.act("commit", answer=None)
    assert "Choose an answer" in card.view["message"]


def test_the_solved_edition_has_questions_answers_and_primers(solved, shown):
    (bundle,) = shown(readiness)
    assert bundle["text/html"].count("<details>") == 4
    assert "Old K stay" in bundle["text/html"]
