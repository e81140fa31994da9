import pytest

from servelab.course import content
from servelab.course.content.form import Chapter, Choice, Goal, OwnWords, Prediction, Quiz, QuizItem

RIGHT = Choice("a", "A", "because", right=True)
WRONG = Choice("b", "B", "because not")


def item(name: str = "one", new: bool = False) -> QuizItem:
    return QuizItem(name, "?", (RIGHT, WRONG), new_numbers=new)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Prediction("kv", "?", "so"), "expected an id"),
        (lambda: Prediction("01.kv", "?", " "), "needs an explanation"),
        (lambda: Prediction("01.kv", "?", "so", close=1), "close > 1"),
        (lambda: Prediction("01.kv", "?", "so", choices=(RIGHT,)), "at least two"),
        (lambda: Prediction("01.kv", "?", "so", choices=(RIGHT, RIGHT)), "defined twice"),
        (lambda: QuizItem("x", "?", (WRONG, Choice("c", "C", "no"))), "exactly 1 right"),
        (lambda: QuizItem("x", "?", (RIGHT, Choice("c", "C", ""))), "needs a `why`"),
        (lambda: Quiz("01", "t", (item(), item("two"))), "half of the items"),
        (lambda: Quiz("01.retrieval", "t", (item(), item())), "defined twice"),
        (lambda: Quiz("01.retrieval", "t", ()), "at least one item"),
        (lambda: OwnWords("01.x", "?", ("1", "2")), "three points"),
        (lambda: Goal("01.x", "t", ()), "some evidence"),
        (lambda: Goal("01.x", "t", ("guess:01.x",)), "no known form"),
        (lambda: Chapter("1", "t", "?", 1, "easy", "CPU"), "expected '01'"),
        (lambda: Chapter("02", "t", "?", 1, "easy", "CPU", predictions=(Prediction("01.a", "?", "so"),)), "chapter 02"),
    ],
)
def test_a_form_refuses_what_a_learner_could_not_answer(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_retrieval_quiz_need_not_bring_new_numbers():
    assert Quiz("01.retrieval", "t", (item(), item("two"))).items[0].right is RIGHT


def test_half_new_numbers_is_enough():
    assert len(Quiz("01", "t", (item(new=True), item("two"))).items) == 2


def test_parts_are_found_by_id_and_a_wrong_id_names_the_nearest():
    assert content.prediction("99.seconds").unit == "s"
    assert content.quiz("99").title == "Quiz: the bottleneck"
    assert content.own_words("99.troubles").id == "99.troubles"
    with pytest.raises(ValueError, match=r"no prediction '99.second'; there is 99.seconds"):
        content.prediction("99.second")
    with pytest.raises(ValueError, match="no chapter '98'"):
        content.chapter("98")
