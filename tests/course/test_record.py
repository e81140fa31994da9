import json
import os
import subprocess
import sys

import pytest

from servelab.course import record as record_file
from servelab.course.record import Record, learner_record, solved_edition


def test_an_entry_is_kept_between_kernels(data_folder):
    Record(data_folder / "progress.json").update("checks", "99.blocks", lambda entry: entry.update(attempts=2))
    assert Record(data_folder / "progress.json").entry("checks", "99.blocks") == {"attempts": 2}
    assert Record(data_folder / "progress.json").entry("checks", "99.other") is None
    assert not list(data_folder.glob("*.part"))


@pytest.mark.parametrize("damage", ["{", "", "[1]", "\x00\x01", "[" * 100_000])
def test_a_damaged_file_is_moved_aside_and_said_so(data_folder, capsys, damage):
    data_folder.mkdir()
    (data_folder / "progress.json").write_text(damage)
    learner_record().update("words", "99.troubles", lambda entry: entry.update(text="t"))
    assert "could not be read" in capsys.readouterr().out
    (aside,) = data_folder.glob("progress.json.damaged-*")
    assert aside.read_text() == damage
    assert json.loads((data_folder / "progress.json").read_text())["words"]["99.troubles"] == {"text": "t"}


def test_sections_of_a_wrong_kind_count_as_empty(data_folder):
    data_folder.mkdir()
    (data_folder / "progress.json").write_text('{"predictions": 3, "seed": "x", "quizzes": {"99": 4}}')
    assert learner_record().read()["predictions"] == {}
    assert learner_record().entry("quizzes", "99") is None


def test_an_interrupted_save_leaves_the_old_file(data_folder, monkeypatch):
    record = Record(data_folder / "progress.json")
    record.update("checks", "a", lambda entry: entry.update(attempts=1))
    before = (data_folder / "progress.json").read_text()

    def dies(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        record.update("checks", "b", lambda entry: entry.update(attempts=1))
    assert (data_folder / "progress.json").read_text() == before


def test_a_folder_that_cannot_be_written_keeps_things_until_the_kernel_ends(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    record = Record(tmp_path / "file" / "progress.json")
    record.update("checks", "a", lambda entry: entry.update(attempts=1))
    record.update("checks", "b", lambda entry: entry.update(attempts=2))
    assert record.entry("checks", "a") == {"attempts": 1}
    assert capsys.readouterr().out.count("cannot be saved") == 1


def test_two_notebooks_do_not_overwrite_each_other(data_folder):
    code = (
        "import sys; from servelab.course.record import learner_record\n"
        "for i in range(40): learner_record().update('checks', f'{sys.argv[1]}{i}', lambda e: e.update(attempts=1))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, name], env={**os.environ}) for name in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(learner_record().read()["checks"]) == 80


def test_the_seed_is_drawn_once_and_may_be_given(monkeypatch):
    assert learner_record().seed == 1
    monkeypatch.delenv("SERVELAB_SEED")
    first = learner_record().seed
    assert learner_record().seed == first
    assert learner_record().read()["seed"] == first


def test_the_solved_edition_neither_reads_nor_writes(solved, data_folder, monkeypatch):
    monkeypatch.delenv("SERVELAB_SEED")
    assert solved_edition()
    learner_record().update("checks", "a", lambda entry: entry.update(attempts=1))
    assert learner_record().seed == 0
    assert not data_folder.exists()


def test_the_platforms_folder_is_used_when_none_is_given(monkeypatch):
    monkeypatch.delenv("SERVELAB_DATA")
    assert record_file.data_folder().name == "servelab"


@pytest.mark.parametrize("seed", ["abc", "1.5", "9" * 5000])
def test_a_seed_that_is_no_integer_is_named(monkeypatch, seed):
    monkeypatch.setenv("SERVELAB_SEED", seed)
    with pytest.raises(ValueError, match="expected SERVELAB_SEED as an integer, got"):
        _ = learner_record().seed


def test_a_file_system_without_locks_still_saves(data_folder, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    learner_record().update("checks", "a", lambda entry: entry.update(attempts=1))
    assert Record(data_folder / "progress.json").entry("checks", "a") == {"attempts": 1}
