"""The learner's edition of a notebook, and the folder that it is kept in."""

import datetime
import json
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from servelab.course import workspace
from servelab.course.workspace import learner_edition, sync

SOLVED = """def double(x):
    \"\"\"Twice x.\"\"\"
    ### BEGIN SOLUTION 01.double
    return 2 * x
    ### END SOLUTION"""


def notebook(*sources: str, tags: dict[int, list[str]] | None = None, run: bool = False) -> NotebookNode:
    cells = []
    for index, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(source, id=f"cell-{index}", metadata={"tags": (tags or {}).get(index, [])})
        if run:
            cell.execution_count = index + 1
            cell.outputs = [nbformat.v4.new_output("stream", text="an answer of the author's\n")]
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells)


def course(root: Path, *sources: str) -> Path:
    (root / "notebooks").mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook(*sources, run=True), root / "notebooks" / "01_first.ipynb")
    return root / "workspace" / "01_first.ipynb"


def run(path: Path) -> None:
    """As JupyterLab leaves a notebook that was run to its end: outputs, counts, a blank cell, other metadata."""
    read = nbformat.read(path, as_version=4)
    for cell in read.cells:
        cell.execution_count = 1
        cell.outputs = [nbformat.v4.new_output("stream", text="the learner's output\n")]
    read.cells.append(nbformat.v4.new_code_cell(""))
    read.metadata["language_info"] = {"name": "python", "version": "3.12.1"}
    nbformat.write(read, path)


def edit(path: Path, source: str) -> None:
    read = nbformat.read(path, as_version=4)
    read.cells[0].source = source
    nbformat.write(read, path)


def first_source(path: Path) -> str:
    return str(nbformat.read(path, as_version=4).cells[0].source)


def test_a_solution_becomes_a_stub_that_says_not_done() -> None:
    solved = notebook(SOLVED, run=True)
    learner = learner_edition(solved)
    source = learner.cells[0].source
    assert source.splitlines()[-1] == '    raise NotImplementedError("Task 01.double: write this part")'
    assert "SOLUTION" not in source
    assert "2 * x" not in source
    names: dict[str, object] = {}
    exec(source, names)
    with pytest.raises(NotImplementedError, match=r"Task 01\.double"):
        names["double"](1)  # type: ignore[operator]
    assert learner.cells[0].outputs == []
    assert learner.cells[0].execution_count is None
    assert learner.cells[0].id == "cell-0"
    assert solved.cells[0].outputs, "the notebook that was passed in is left as it was"
    nbformat.validate(learner)


def test_a_learner_sees_no_line_that_is_for_the_tests_of_the_course() -> None:
    solved = notebook('# NBVAL_CHECK_OUTPUT\ncheck("01.double", double)')
    assert learner_edition(solved).cells[0].source == 'check("01.double", double)'


def test_an_own_stub_replaces_the_solution_at_the_indentation_of_the_marker() -> None:
    source = "for i in [1]:\n    ### BEGIN SOLUTION\n    ### STUB: size = ...\n    ### STUB: if i:\n"
    source += "    ### STUB:     size = None\n    size = 16\n    ### END SOLUTION\nprint(size)"
    assert learner_edition(notebook(source)).cells[0].source == (
        "for i in [1]:\n    size = ...\n    if i:\n        size = None\nprint(size)"
    )


def test_two_solutions_in_one_cell_get_a_stub_each() -> None:
    source = learner_edition(notebook(SOLVED + "\n\n" + SOLVED.replace("double", "triple"))).cells[0].source
    assert source.count("raise NotImplementedError") == 2
    assert "Task 01.triple" in source


def test_cells_of_the_solved_edition_are_left_out() -> None:
    learner = learner_edition(notebook("a = 1", "b = 2", tags={1: ["solved-only"]}))
    assert [cell.source for cell in learner.cells] == ["a = 1"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("### BEGIN SOLUTION\nx = 1", "expected ### END SOLUTION, got the end of the cell"),
        ("x = 1\n### END SOLUTION", "expected ### BEGIN SOLUTION"),
        ("if x:\n  ### BEGIN SOLUTION\n  ### BEGIN SOLUTION\n  ### END SOLUTION", "got a second"),
        ("### BEGIN SOLUTION 01.x\nx = 1\n### END SOLUTION", "expected a ### STUB line"),
        ("### STUB: x = ...", "expected ### STUB inside a solution"),
    ],
)
def test_markers_that_do_not_fit_are_an_error_that_names_the_cell(source: str, message: str) -> None:
    with pytest.raises(ValueError, match="cell cell-0") as error:
        learner_edition(notebook(source))
    assert message in str(error.value)


def test_a_new_workspace_gets_the_learners_edition(tmp_path: Path) -> None:
    mine = course(tmp_path, SOLVED)
    assert sync(tmp_path).added == ["01_first.ipynb"]
    assert "raise NotImplementedError" in first_source(mine)
    assert "author" not in mine.read_text()
    again = sync(tmp_path)
    assert (again.added, again.updated, again.conflicts) == ([], [], {})
    assert again.kept == ["01_first.ipynb"]


def test_a_notebook_left_alone_is_updated(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    course(tmp_path, "new = 1")
    report = sync(tmp_path)
    assert report.updated == ["01_first.ipynb"]
    assert report.backups == {}
    assert first_source(mine) == "new = 1"


def test_a_notebook_that_was_only_run_is_updated_and_its_outputs_are_kept(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    run(mine)
    assert sync(tmp_path).kept == ["01_first.ipynb"], "there is no new version yet"
    before = mine.read_bytes()
    course(tmp_path, "new = 1")
    report = sync(tmp_path)
    name = f"01_first.before-{datetime.date.today().isoformat()}.ipynb"
    assert report.backups == {"01_first.ipynb": name}
    assert mine.with_name(name).read_bytes() == before
    assert first_source(mine) == "new = 1"


def test_an_edited_notebook_is_never_overwritten(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    edit(mine, "my = 1")
    assert sync(tmp_path).conflicts == {}, "nothing new to offer"
    course(tmp_path, "new = 1")
    edited = mine.read_bytes()
    report = sync(tmp_path)
    assert report.conflicts == {"01_first.ipynb": "01_first.new.ipynb"}
    assert mine.read_bytes() == edited
    beside = mine.with_name("01_first.new.ipynb")
    assert first_source(beside) == "new = 1"
    beside.unlink()
    assert sync(tmp_path).kept == ["01_first.ipynb"]
    assert not beside.exists(), "one version is offered once"


def test_a_newer_version_replaces_an_offer_only_where_nobody_touched_it(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    edit(mine, "my = 1")
    for version in ("new = 2", "new = 3"):
        course(tmp_path, version)
        assert sync(tmp_path).conflicts == {"01_first.ipynb": "01_first.new.ipynb"}
    beside = mine.with_name("01_first.new.ipynb")
    assert first_source(beside) == "new = 3"
    edit(beside, "my other = 1")
    course(tmp_path, "new = 4")
    assert sync(tmp_path).conflicts == {"01_first.ipynb": "01_first.new-2.ipynb"}
    assert first_source(beside) == "my other = 1"
    assert first_source(mine) == "my = 1"


def test_a_learner_who_takes_the_new_version_is_up_to_date_again(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    edit(mine, "my = 1")
    course(tmp_path, "new = 2")
    sync(tmp_path)
    mine.with_name("01_first.new.ipynb").replace(mine)
    assert sync(tmp_path).kept == ["01_first.ipynb"]
    course(tmp_path, "new = 3")
    assert sync(tmp_path).updated == ["01_first.ipynb"]
    assert first_source(mine) == "new = 3"


def test_a_deleted_notebook_comes_back(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    edit(mine, "my = 1")
    mine.unlink()
    assert sync(tmp_path).added == ["01_first.ipynb"]
    assert first_source(mine) == "old = 1"


@pytest.mark.parametrize(
    "state", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": {"01_first.ipynb": 3}}', '{"version": 99}']
)
def test_without_a_readable_record_what_differs_counts_as_the_learners(tmp_path: Path, state: str) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    record = mine.with_name(workspace.STATE_FILE)
    record.write_text(state)
    assert sync(tmp_path).kept == ["01_first.ipynb"], "what equals the course is nobody's edit"
    json.loads(record.read_text())
    record.write_text(state)
    course(tmp_path, "new = 1")
    report = sync(tmp_path)
    assert report.conflicts == {"01_first.ipynb": "01_first.new.ipynb"}
    assert first_source(mine) == "old = 1"


def test_a_file_that_is_no_notebook_is_the_learners(tmp_path: Path) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    mine.write_text('{"cells": [')
    course(tmp_path, "new = 1")
    assert sync(tmp_path).conflicts == {"01_first.ipynb": "01_first.new.ipynb"}
    assert mine.read_text() == '{"cells": ['


def test_labs_are_brought_as_they_are(tmp_path: Path) -> None:
    course(tmp_path, "a = 1")
    lab = tmp_path / "labs" / "01_accounting"
    lab.mkdir(parents=True)
    starter = notebook("raise NotImplementedError('Task 1')")
    starter.cells[0].metadata["nbgrader"] = {"grade_id": "task-1"}
    nbformat.write(starter, lab / "01_accounting.ipynb")
    nbformat.write(notebook("answer = 1"), lab / "solution.ipynb")
    assert sync(tmp_path).added == ["01_first.ipynb", "labs/01_accounting.ipynb"]
    copied = nbformat.read(tmp_path / "workspace" / "labs" / "01_accounting.ipynb", as_version=4)
    assert copied.cells[0].metadata["nbgrader"] == {"grade_id": "task-1"}
    assert not list(tmp_path.glob("workspace/**/solution.ipynb"))


def test_another_folder_can_be_the_workspace(tmp_path: Path) -> None:
    course(tmp_path, "a = 1")
    sync(tmp_path, tmp_path / "elsewhere" / "mine")
    assert (tmp_path / "elsewhere" / "mine" / "01_first.ipynb").exists()
    assert not (tmp_path / "workspace").exists()


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = course(tmp_path, "old = 1")
    sync(tmp_path)
    before = sorted((path.name, path.read_bytes()) for path in mine.parent.iterdir())
    course(tmp_path, "new = 1")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        sync(tmp_path)
    assert sorted((path.name, path.read_bytes()) for path in mine.parent.iterdir()) == before


def test_a_folder_without_notebooks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected notebooks in"):
        sync(tmp_path)
