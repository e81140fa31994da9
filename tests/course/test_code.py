import re

import pytest

from servelab.cache import BlockPool
from servelab.course import source
from servelab.course.code import source_text
from servelab.trace import Trace


def test_code_is_shown_with_its_path_and_line(shown):
    (bundle,) = shown(source, BlockPool.allocate)
    place = re.search(r"src/servelab/cache/pool\.py:(\d+)", bundle["text/html"])
    assert place
    assert "allocate" in bundle["text/html"]
    assert bundle["text/plain"].startswith(f"# {place.group(0)}\ndef allocate(self")
    assert "/work" not in bundle["text/html"]


def test_the_line_is_where_the_code_stands():
    from pathlib import Path

    import servelab

    text, place = source_text(BlockPool.allocate)
    path, _, line = place.rpartition(":")
    lines = (Path(servelab.__file__).parents[1] / path.removeprefix("src/")).read_text().splitlines()
    assert lines[int(line) - 1].strip() == text.splitlines()[0]


def test_docstrings_may_be_left_out():
    full, _ = source_text(BlockPool)
    short, _ = source_text(BlockPool, docstring=False)
    assert '"""' in full
    assert '"""' not in short
    compile(short, "short", "exec")
    assert "def allocate" in short


def test_several_things_one_after_the_other(shown):
    assert len(shown(source, BlockPool.allocate, BlockPool.free)) == 2


def test_properties_are_shown_by_their_function():
    names = [name for name, value in vars(BlockPool).items() if isinstance(value, property)]
    assert f"def {names[0]}" in source_text(vars(BlockPool)[names[0]])[0]


@pytest.mark.parametrize("thing", [3, len, re.compile, lambda: 1])
def test_what_is_not_ours_is_refused(thing):
    with pytest.raises(ValueError, match="expected a function, method or class of servelab"):
        source(thing)


def test_colours_follow_the_theme_and_have_a_fallback(shown):
    html = shown(source, Trace.save)[0]["text/html"]
    assert re.search(r"color:var\(--jp-mirror-editor-keyword-color,#[0-9a-f]{6}\)", html)
