from pathlib import Path

from servelab.model import cache_folder, list_models
from servelab.model.catalog import DEFAULT_MODEL, WHEELS


def test_the_first_entry_is_the_offline_default():
    entries = list_models()
    assert (entries[0].name, entries[0].source) == (DEFAULT_MODEL, "wheel")
    assert [entry.name for entry in entries if entry.source == "wheel"] == list(WHEELS)
    assert entries[0].download_bytes == WHEELS[DEFAULT_MODEL].wheel_bytes


def test_the_list_is_the_callers_own():
    list_models().clear()
    assert list_models()


def test_every_licence_lets_the_course_use_it():
    assert {entry.licence for entry in list_models()} == {"Apache-2.0"}


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVELAB_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SERVELAB_CACHE")
    assert cache_folder() != tmp_path
    assert isinstance(cache_folder(), Path)
