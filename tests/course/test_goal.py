import pytest

from servelab.course import check, content, goals, own_words, predict, progress, quiz
from servelab.course.goal import done
from servelab.course.record import learner_record


def blocks(num_tokens, block_size):
    return -(-num_tokens // block_size)


@pytest.fixture
def card(shown, widget_of):
    return widget_of(shown(goals, "99")[0])


def ticks(card) -> list[bool]:
    return ["servelab-done" in row for row in card.view["body"].split("<li")[1:]]


def test_goals_are_ticked_by_evidence_while_they_are_shown(card, shown, widget_of):
    assert ticks(card) == [False, False, False]
    check("99.blocks", blocks)
    assert ticks(card) == [False, True, False]
    widget_of(shown(own_words, "99.troubles")[0]).act("commit", text="Memory was reserved and never used.")
    assert ticks(card) == [False, True, True]
    widget_of(shown(predict, "99.seconds")[0]).act("commit", answer="12")
    assert ticks(card) == [False, True, True]
    asked = widget_of(shown(quiz, "99")[0])
    for _ in range(2):
        asked.act("commit", answer="double", confidence="guess")
        asked.act("next")
    assert ticks(card) == [True, True, True]


def test_a_wrong_answer_ticks_nothing(card):
    check("99.blocks", lambda num_tokens, block_size: 0)
    assert ticks(card) == [False, False, False]


def test_a_skipped_prediction_is_no_evidence(shown, widget_of):
    widget_of(shown(predict, "99.seconds")[0]).act("skip")
    assert not done("prediction:99.seconds", learner_record().read())


def test_a_tick_is_said_in_words(card):
    assert 'aria-label="not yet"' in card.view["body"]


def test_progress_counts_each_kind(shown, monkeypatch):
    monkeypatch.setattr(content, "NUMBERS", ("99",))
    check("99.blocks", blocks)
    (bundle,) = shown(progress)
    assert bundle["text/plain"].splitlines()[1] == "99 The bottleneck  0 of 3  1 of 2  0 of 2  0 of 1  1 of 3"


def test_the_readiness_check_is_evidence_once_all_of_it_is_answered():
    answers = {"old-keys": {"choice": "no"}}
    learner_record().replace("readiness", "00.readiness", dict(answers))
    assert not done("readiness", learner_record().read())
    learner_record().replace("readiness", "00.readiness", {**answers, "bandwidth": {"choice": "compute"}})
    assert done("readiness", learner_record().read())


def test_the_solved_edition_lists_the_goals(solved, shown):
    (bundle,) = shown(goals, "99")
    assert bundle["text/html"].count("<li>") == 3
    assert "model_id" not in str(bundle)
