"""Whose numbers a lab shows, and that marking raises where checking only speaks."""

import pytest

from servelab.course.assignment import Assignment, seed_of


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVELAB_DATA", str(tmp_path))
    for name in ("SERVELAB_LEARNER", "SERVELAB_COURSE_SEED", "SERVELAB_GRADING_SEED", "SERVELAB_EDITION"):
        monkeypatch.delenv(name, raising=False)


def right(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element):
    return num_layers * 2 * num_kv_heads * head_dim * bytes_per_element


def test_numbers_follow_from_the_name_and_the_course():
    ada = Assignment("01", "Ada", "autumn")
    assert Assignment("01", " ada ", "Autumn").constants == ada.constants
    assert Assignment("01", "Alan", "autumn").constants != ada.constants
    assert Assignment("01", "Ada", "spring").constants != ada.constants


def test_a_grader_that_knows_better_takes_precedence(monkeypatch):
    ada = Assignment("01", "Ada", "autumn").constants
    monkeypatch.setenv("SERVELAB_LEARNER", "Ada")
    monkeypatch.setenv("SERVELAB_COURSE_SEED", "autumn")
    assert Assignment("01", "a neighbour").constants == ada


def test_words_are_not_run_together():
    assert seed_of("ab", "c") != seed_of("a", "bc")


def test_check_speaks_and_grade_raises(capsys):
    lab = Assignment("01", "Ada")
    lab.check("kv-bytes", lambda *shape: 1)
    assert "Not right yet" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="Not right yet"):
        lab.grade("kv-bytes", lambda *shape: 1)


def test_right_answer_passes_both(capsys):
    lab = Assignment("01", "Ada")
    lab.check("kv-bytes", right)
    lab.grade("kv-bytes", right)
    out = capsys.readouterr().out
    assert "Passed" in out
    assert "2 of 2 points" in out


def test_marking_draws_other_cases_than_checking(monkeypatch):
    """An answer that fails on nothing but the cases of a secret seed is found by it alone."""
    lab = Assignment("01", "Ada")
    task = lab.task("kv-bytes")
    known = {case.arguments: case.expected for case in task.cases(lab.seed)}
    with pytest.raises(AssertionError):
        lab.grade("kv-bytes", lambda *shape: known.get(shape, 0))


def test_unknown_lab_and_task():
    with pytest.raises(ValueError, match="expected the number of a lab"):
        Assignment("77")
    with pytest.raises(ValueError, match="kv-bytes"):
        Assignment("01").task("kv-byte")
