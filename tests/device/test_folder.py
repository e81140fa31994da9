"""The cache folder is the one that was asked for, or the system's."""

from pathlib import Path

import platformdirs

from servelab.device import cache_folder


def test_the_variable_wins(monkeypatch):
    monkeypatch.setenv("SERVELAB_CACHE", "~/models")
    assert cache_folder() == Path.home() / "models"


def test_the_system_has_a_place(monkeypatch):
    monkeypatch.delenv("SERVELAB_CACHE", raising=False)
    assert cache_folder() == Path(platformdirs.user_cache_dir("servelab", appauthor=False))
