"""The notebooks are what their sources make, nbgrader's metadata is whole, and a learner's copy shows no answer."""

import importlib.util
import re

import nbformat
import pytest

from servelab.course.tasks import tasks
from servelab.course.tasks.task import STANDARD_IMPORTS


@pytest.fixture(scope="module")
def build(labs):
    spec = importlib.util.spec_from_file_location("labs_build", labs / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notebooks_are_fresh_and_in_form(build, lab, labs):
    assert build.problems(labs / lab / "source.py") == []


def test_stale_notebook_is_named(build, lab, labs, tmp_path, monkeypatch):
    folder = tmp_path / lab
    folder.mkdir()
    for name in ("source.py", f"{lab}.ipynb", "solution.ipynb"):
        (folder / name).write_text((labs / lab / name).read_text(encoding="utf-8"), encoding="utf-8")
    with (folder / "source.py").open("a", encoding="utf-8") as source:
        source.write('\n# %% [markdown] id="more"\n# One more line.\n')
    found = build.problems(folder / "source.py")
    assert len(found) == 2
    assert all("is not what" in one for one in found)


def test_form_faults_are_named(build, lab, labs):
    whole = build.read_source(labs / lab / "source.py")
    graded = next(cell for cell in whole.cells if cell.metadata.get("nbgrader", {}).get("grade"))
    graded.metadata["nbgrader"]["points"] += 1
    whole.cells[0].source = whole.cells[0].source.replace("points", "marks")
    found = " ".join(build.form_faults(whole, lab[:2]))
    assert "graded cells" in found
    assert "the title does not say" in found


def test_each_task_names_the_modules_it_may_import(build, lab, labs):
    whole = build.read_source(labs / lab / "source.py")
    lines = {cell.id: cell.source.splitlines() for cell in whole.cells}
    for task in tasks(f"lab{lab[:2]}"):
        name = f"{task.id.partition('.')[2]}-text"
        named = next(line for line in lines[name] if line.startswith("*May import:* "))
        assert set(re.findall("`(.+?)`", named)) == {*STANDARD_IMPORTS, *task.allowed_imports}
    cell = next(cell for cell in whole.cells if cell.id == name)
    cell.source = cell.source.replace("`math`, ", "")
    assert "without the line *May import:*" in " ".join(build.form_faults(whole, lab[:2]))


def test_learner_sees_stubs_and_no_hidden_test(lab, labs):
    notebook = nbformat.read(labs / lab / f"{lab}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "HIDDEN" not in text
    assert "SOLUTION" not in text
    assert ".grade(" not in text
    for number in range(1, 6):
        assert f'raise NotImplementedError("Task {number}: ' in text


def test_only_the_name_and_the_answers_can_be_edited(lab, labs):
    notebook = nbformat.read(labs / lab / f"{lab}.ipynb", as_version=4)
    open_cells = [cell.id for cell in notebook.cells if not cell.metadata.get("nbgrader", {}).get("locked")]
    answers = [cell.id for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("solution")]
    assert open_cells == ["name", *answers]
    assert len(answers) == 5


def test_teachers_seed_is_written_into_the_course(build, lab, labs, tmp_path):
    assert build.main([lab, "--nbgrader", str(tmp_path), "--course-seed", "autumn 2027"]) == 0
    made = nbformat.read(tmp_path / "source" / lab / f"{lab}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in made.cells)
    assert 'COURSE_SEED = "autumn 2027"' in text
    assert 'COURSE_SEED = "servelab"' not in text


def test_a_seed_that_is_code_is_refused(build):
    with pytest.raises(ValueError, match="expected a course seed"):
        build.seeded("{}", 'x"; import os; "')
