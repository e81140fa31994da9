import pytest

from servelab.course import glossary, own_words
from servelab.course.record import learner_record

ANSWER = "Memory was reserved for the longest answer, so few requests fitted."


@pytest.fixture
def card(shown, widget_of):
    return widget_of(shown(own_words, "99.troubles")[0])


def test_the_points_reach_the_browser_only_after_a_text(shown, card, browser_sees):
    assert "SECRET" not in browser_sees(shown(own_words, "99.troubles"))
    card.act("commit", text="too short")
    assert "Write a sentence" in card.view["message"]
    assert "SECRET" not in browser_sees([])
    card.act("commit", text=ANSWER)
    assert [option["html"][:9] for option in card.view["fields"][1]["options"]] == [
        "SECRET-P1",
        "SECRET-P2",
        "SECRET-P3",
    ]


def test_text_and_marks_are_kept(card, shown, widget_of):
    card.act("commit", text=ANSWER)
    card.act("save", text=ANSWER + " <b>And</b> holes.", marks=["0", "1"])
    assert "2 of 3" in card.view["message"]
    again = widget_of(shown(own_words, "99.troubles")[0])
    assert again.view["fields"][0]["value"] == ANSWER + " <b>And</b> holes."
    assert again.view["fields"][1]["value"] == ["0", "1"]


def test_an_emptied_text_is_not_saved(card):
    card.act("commit", text=ANSWER)
    card.act("save", text=" ", marks=[])
    assert learner_record().entry("words", "99.troubles")["text"] == ANSWER


def test_the_solved_edition_folds_the_points(solved, shown):
    (bundle,) = shown(own_words, "99.troubles")
    assert bundle["text/html"].count("<li>SECRET-P") == 3
    assert "<details>" in bundle["text/html"]


@pytest.fixture
def _chapters(monkeypatch):
    from servelab.course import content

    monkeypatch.setattr(content, "NUMBERS", ("99",))


@pytest.mark.usefixtures("_chapters")
def test_the_glossary_is_sorted_and_in_two_languages(shown):
    (bundle,) = shown(glossary)
    html = bundle["text/html"]
    assert html.index("block table") < html.index("KV cache")
    assert 'lang="zh"' in html
    assert "块表" in html


@pytest.mark.usefixtures("_chapters")
@pytest.mark.parametrize("name", ["Block Table", "page table", "块表"])
def test_a_term_is_found_by_any_of_its_names(shown, name):
    (bundle,) = shown(glossary, name)
    assert "块表" in bundle["text/plain"]
    assert "KV cache" not in bundle["text/plain"]


@pytest.mark.usefixtures("_chapters")
def test_an_unknown_term_names_the_nearest(capsys):
    glossary("blok table")
    assert "block table" in capsys.readouterr().out
