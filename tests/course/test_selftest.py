import gettext
import json
import re
import struct

import pytest
from demo_chapter import BLOCKS, ONE_TOO_MANY, ROUND_DOWN, blocks

from servelab import translation
from servelab.course import check, hint
from servelab.course.record import learner_record


def printed(capsys, name, answer) -> str:
    check(name, answer)
    return capsys.readouterr().out


def test_a_right_answer_prints_one_line_and_is_kept(capsys):
    text = printed(capsys, "99.blocks", blocks)
    assert text == "Passed: Blocks for a request. Every case agrees, those drawn for you too.\n"
    assert "passed" in learner_record().entry("checks", "99.blocks")


def test_the_pass_line_is_the_same_for_every_seed(capsys, monkeypatch):
    lines = set()
    for seed in range(5):
        monkeypatch.setenv("SERVELAB_SEED", str(seed))
        lines.add(printed(capsys, "99.blocks", blocks))
    assert len(lines) == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("answer", "message"), [(lambda n, size: n // size, ROUND_DOWN), (lambda n, size: n // size + 1, ONE_TOO_MANY)]
)
def test_a_wrong_answer_gets_its_message_and_not_the_answer(capsys, monkeypatch, answer, message, seed):
    monkeypatch.setenv("SERVELAB_SEED", str(seed))
    text = printed(capsys, "99.blocks", answer)
    call, got = re.search(r"You call +blocks\((.*)\)\n +It returns +(\d+)\n", text).groups()
    arguments = [int(number) for number in call.split(",")]
    assert int(got) == answer(*arguments) != blocks(*arguments)
    assert f"Likely mistake: {message}" in text
    assert "hint('99.blocks')" in text
    rest = text.replace(call, "").replace(message, "").replace("99.blocks", "")
    assert str(blocks(*arguments)) not in re.findall(r"\d+", rest.replace(f"It returns   {got}", ""))
    assert "passed" not in learner_record().entry("checks", "99.blocks")


def test_a_stub_is_not_done_yet_and_counts_as_no_attempt(capsys):
    def stub(n, size):
        raise NotImplementedError("Task 99.blocks")

    for answer in (stub, None, ..., lambda n, size: None):
        assert printed(capsys, "99.blocks", answer).startswith("Not done yet: Blocks for a request.\n")
    assert "attempts" not in learner_record().entry("checks", "99.blocks")


def test_an_exception_is_short_and_names_the_line(capsys):
    def divides(n, size):
        print("n is", n)
        return n / 0

    text = printed(capsys, "99.blocks", divides)
    assert "It raises    ZeroDivisionError: division by zero" in text
    assert re.search(r"At line      \d+: return n / 0", text)
    assert "It prints    n is 7" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 7


def test_an_endless_loop_says_how_long_it_ran(capsys):
    def endless(n, size):
        while True:
            n += 1

    assert "stopped after 0.5 s" in printed(capsys, "99.blocks", endless)


def test_a_value_is_shown_back(capsys):
    text = printed(capsys, "99.capacity", 11)
    assert "You give     11" in text
    assert "76" not in text
    assert printed(capsys, "99.capacity", 76) == "Passed: Requests that fit.\n"


def test_a_call_instead_of_the_name_says_what_to_pass(capsys):
    assert "Pass a function named blocks, without calling it" in printed(capsys, "99.blocks", blocks(7, 4))


def test_an_answer_that_passed_stays_passed(capsys):
    printed(capsys, "99.blocks", blocks)
    printed(capsys, "99.blocks", lambda n, size: 0)
    assert "passed" in learner_record().entry("checks", "99.blocks")


def test_hints_come_one_by_one_and_the_last_stays(capsys):
    for _ in range(4):
        hint("99.blocks")
    assert capsys.readouterr().out.splitlines() == [
        f"Hint 1 of 3: {BLOCKS.hints[0]}",
        f"Hint 2 of 3: {BLOCKS.hints[1]}",
        f"Hint 3 of 3: {BLOCKS.hints[2]}",
        f"Hint 3 of 3: {BLOCKS.hints[2]}",
    ]


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match=r"no task '99.blok'; there is 99.blocks"):
        check("99.blok", blocks)


def catalogue(messages: dict[str, str]) -> bytes:
    """A compiled catalogue (GNU gettext's .mo format, version 0) with these messages."""
    pairs = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    encoded = [(key.encode(), value.encode()) for key, value in pairs]
    start, table = 28 + 16 * len(encoded), [b"", b""]
    body = b""
    for side in (0, 1):
        for pair in encoded:
            table[side] += struct.pack("<II", len(pair[side]), start + len(body))
            body += pair[side] + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(encoded), 28, 28 + 8 * len(encoded), 0, 0)
    return header + table[0] + table[1] + body


def test_a_catalogue_changes_what_check_says(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "zh_CN" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "servelab.mo").write_bytes(catalogue({"Passed: {title}.": "通过：{title}。"}))
    monkeypatch.setenv("LANGUAGE", "zh_CN")
    gettext.bindtextdomain("servelab", str(tmp_path))
    try:
        assert printed(capsys, "99.capacity", 76) == "通过：Requests that fit。\n"
    finally:
        gettext.bindtextdomain("servelab", str(translation.LOCALE_DIR))


class Unreadable:
    """An object that answers no question about itself."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def __call__(self, *arguments):
        return 1


class Unspeakable(Exception):
    """An exception whose text ends the program."""

    def __str__(self):
        raise SystemExit


def ends_unspeakably(n, size):
    raise Unspeakable


async def forgets_to_be_a_function(n, size):
    return 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(Unreadable(), "It raises    RuntimeError: no ", id="unreadable"),
        (ends_unspeakably, "It raises    Unspeakable"),
        (forgets_to_be_a_function, "It returns   an object of type coroutine"),
        (lambda n, size: 10**5000, "It returns   something too long to show"),
        (lambda n, size: print("\ud800"), "It prints    \\ud800"),
        (lambda n, size: -(10**400), "It returns   -1000"),
    ],
)
def test_an_answer_that_misbehaves_is_not_right_and_breaks_nothing(capsys, answer, words):
    text = printed(capsys, "99.blocks", answer)
    assert words in text or "Not done yet" in text
    assert "Passed" not in text


@pytest.mark.parametrize("name", [None, 5, [], blocks])
def test_a_task_is_named_by_text(name):
    with pytest.raises(ValueError, match=r"expected the id of a task as text, .* got"):
        check(name, "99.blocks")
    with pytest.raises(ValueError, match=r"expected the id of a task as text, .* got"):
        hint(name)


@pytest.mark.parametrize("entry", [{"attempts": "x", "hints": "y"}, {"attempts": None, "hints": -5}, [], 5])
def test_an_edited_progress_file_does_not_stop_a_check_or_a_hint(capsys, data_folder, entry):
    data_folder.mkdir()
    (data_folder / "progress.json").write_text(json.dumps({"checks": {"99.blocks": entry}}))
    assert "Passed" in printed(capsys, "99.blocks", blocks)
    hint("99.blocks")
    assert "Hint 1 of 3" in capsys.readouterr().out
    assert learner_record().entry("checks", "99.blocks")["attempts"] == 1
