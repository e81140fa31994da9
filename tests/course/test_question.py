import json

import pytest

from servelab.course import quiz
from servelab.course.record import learner_record


@pytest.fixture
def card(shown, widget_of):
    return widget_of(shown(quiz, "99")[0])


def test_no_reason_and_no_mark_reaches_the_browser_before_the_commit(shown, browser_sees):
    seen = browser_sees(shown(quiz, "99"))
    assert "The context doubles" in seen
    assert "SECRET" not in seen


def test_answer_and_confidence_are_both_needed(card):
    card.act("commit", answer=None, confidence="certain")
    assert "Choose an answer" in card.view["message"]
    card.act("commit", answer="double", confidence=None)
    assert "how sure" in card.view["message"]
    assert card.view["fields"][0]["value"] == "double"
    assert learner_record().entry("quizzes", "99") is None


def test_a_wrong_answer_sees_every_option_explained_and_not_the_next_question(card, browser_sees):
    card.act("commit", answer="square", confidence="certain")
    assert all(f"SECRET-{i}" in card.view["body"] for i in (1, 2, 3))
    assert "Your choice, wrong" in card.view["body"]
    assert card.view["message"] == "Not right. You said: Certain."
    assert "SECRET-4" not in browser_sees([])


def test_a_rerun_goes_on_where_it_stopped(card, shown, widget_of):
    card.act("commit", answer="square", confidence="guess")
    again = widget_of(shown(quiz, "99")[0])
    assert "question 2 of 2" in again.view["eyebrow"]


def test_the_first_answer_stays(card):
    card.act("commit", answer="square", confidence="guess")
    card.act("commit", answer="double", confidence="guess")
    assert learner_record().entry("quizzes", "99")["context"]["choice"] == "square"
    assert learner_record().entry("quizzes", "99")["context"]["right"] is False


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([("square", "certain"), ("double", "certain")], "certain and wrong in 1"),
        ([("double", "guess"), ("double", "certain")], "You guessed 1 that were right"),
        ([("double", "certain"), ("double", "fairly")], "you can trust that feeling"),
        ([("square", "guess"), ("double", "certain")], "where you were not sure"),
    ],
)
def test_the_end_compares_confidence_with_what_was_right(card, answers, words):
    for choice, confidence in answers:
        card.act("commit", answer=choice, confidence=confidence)
        card.act("next")
    right = sum(choice == "double" for choice, _ in answers)
    assert f"{right} of 2 right." in card.view["body"]
    assert words in card.view["body"]


def test_answers_can_be_looked_at_again(card):
    for _ in range(2):
        card.act("commit", answer="double", confidence="certain")
        card.act("next")
    card.act("look")
    assert "question 1 of 2" in card.view["eyebrow"]
    assert "SECRET-1" in card.view["body"]
    card.act("next")
    assert "question 2 of 2" in card.view["eyebrow"]
    card.act("next")
    assert "2 of 2 right" in card.view["body"]


def test_an_answer_that_no_longer_exists_is_asked_again(shown, widget_of):
    learner_record().replace("quizzes", "99", {"context": {"choice": "gone", "confidence": "guess"}})
    assert "question 1 of 2" in widget_of(shown(quiz, "99")[0]).view["eyebrow"]


def test_an_option_says_nothing_of_being_right(card):
    assert all(option.keys() == {"key", "html"} for option in card.view["fields"][0]["options"])


def test_fields_have_labels(card):
    assert [field["label"] for field in card.view["fields"]] == ["Your answer", "How sure are you?"]
    assert card.view["label"]


def test_the_solved_edition_folds_each_answer(solved, shown):
    (bundle,) = shown(quiz, "99")
    html = bundle["text/html"]
    assert html.count("<details>") == 2
    assert all(f"SECRET-{i}" in html for i in range(1, 6))
    assert "SECRET" not in bundle["text/plain"]


def test_an_unknown_quiz_names_those_there_are():
    with pytest.raises(ValueError, match="there is 99"):
        quiz("99.retrieval")


def test_the_record_is_plain_json(card, data_folder):
    card.act("commit", answer="double", confidence="fairly")
    entry = json.loads((data_folder / "progress.json").read_text())["quizzes"]["99"]["context"]
    assert sorted(entry) == ["choice", "confidence", "right", "time"]
