"""The author's tool: what it publishes, what it refuses, and what its check notices."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from servelab.course.workspace import learner_edition

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(build, tmp_path_factory) -> Path:
    """The source of a sample chapter that was built once."""
    source = tmp_path_factory.mktemp("course") / "notebooks" / "source" / "01_sample.py"
    source.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "sample" / "01_sample.py", source)
    lines: list[str] = []
    build.build(source, report=lines.append)
    assert lines[0].startswith("01_sample.ipynb: 21 cells, ")
    assert re.search(r" s of 90 s \([\w-]+ \d+\.\d, ", lines[0]), lines[0]
    return source


@pytest.fixture
def course(built, tmp_path) -> Path:
    """The source in a copy of that course, to spoil."""
    shutil.copytree(built.parent.parent, tmp_path / "notebooks")
    return tmp_path / "notebooks" / "source" / built.name


def read(source: Path) -> NotebookNode:
    return nbformat.read(source.parent.parent / f"{source.stem}.ipynb", as_version=4)


def write(source: Path, notebook: NotebookNode) -> None:
    nbformat.write(notebook, source.parent.parent / f"{source.stem}.ipynb")


def cell(notebook: NotebookNode, identifier: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == identifier)


def text(notebook: NotebookNode, identifier: str) -> str:
    return json.dumps(cell(notebook, identifier).outputs)


def test_a_built_notebook_is_solved_executed_and_says_where(build, built):
    notebook = read(built)
    assert build.problems(built) == []
    assert "passed" in text(notebook, "check-double")
    assert any("'solved'" in json.dumps(cell.get("outputs", [])) for cell in notebook.cells)
    record = notebook.metadata.servelab
    assert record.machine == build.machine()
    assert len(record.date.split("-")) == 3
    assert notebook.metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert "widgets" not in notebook.metadata
    assert all("execution" not in cell.metadata for cell in notebook.cells)


def test_ids_and_text_are_the_same_in_every_build(build, course):
    first = read(course)
    build.build(course, report=lambda line: None)
    second = read(course)
    assert [cell.id for cell in first.cells] == [cell.id for cell in second.cells]
    assert first.metadata.servelab.cells_sha256 == second.metadata.servelab.cells_sha256
    assert build.differences(course) == []


def test_a_cell_is_named_by_its_author_or_by_its_text(build, make_source):
    source = make_source('# %% id="mine"\n1\n\n# %%\n2\n\n# %%\n2\n\n# %% [markdown]\n# text\n')
    ids = [cell.id for cell in build.read_source(source).cells]
    assert ids[0] == "mine"
    assert ids[2] == f"{ids[1]}-2"
    assert ids[3].startswith("markdown-")
    moved = make_source('# %%\n2\n\n# %% id="mine"\n1\n')
    assert build.read_source(moved).cells[0].id == ids[1]


def test_the_learners_edition_of_a_built_notebook_runs_to_its_end(build, built, tmp_path):
    notebook = learner_edition(build.notebook_path(built))
    build.execute(notebook, folder=tmp_path, solved=False)
    assert "not done yet" in text(notebook, "check-double")
    assert "'solved'" not in json.dumps(notebook)
    assert [cell.id for cell in notebook.cells] == [cell.id for cell in read(built).cells]


@pytest.mark.parametrize("header", ['id="a b"', 'id="twice"\n1\n\n# %% id="twice"', 'id=""'])
def test_an_id_that_jupyter_or_the_build_could_not_keep_is_refused(build, make_source, header):
    with pytest.raises(build.BuildError, match="cell id"):
        build.read_source(make_source(f"# %% {header}\n1\n"))


def test_the_kernel_sees_an_empty_data_folder_no_network_and_the_edition(build, make_source, monkeypatch):
    monkeypatch.setenv("SERVELAB_DATA", "/somewhere/of/mine")
    monkeypatch.setenv("SERVELAB_EDITION", "solved")
    code = "import os\nprint(os.environ.get('SERVELAB_EDITION'), os.environ['HF_HUB_OFFLINE'],\n"
    code += "    os.environ['SERVELAB_DATA'] != '/somewhere/of/mine' and os.listdir(os.environ['SERVELAB_DATA']))"
    for solved, expected in ((True, "solved 1 []\n"), (False, "None 1 []\n")):
        notebook = new_notebook(cells=[new_code_cell(code)])
        seconds = build.execute(notebook, folder=make_source("").parent, solved=solved)
        assert notebook.cells[0].outputs[0].text == expected
        assert seconds > 0


@pytest.mark.parametrize(
    ("code", "message"),
    [("1 / 0", "ZeroDivisionError"), ("import warnings\nwarnings.warn('old')", "cell planted writes to stderr")],
)
def test_a_chapter_that_raises_or_warns_is_not_published(build, make_source, code, message):
    source = make_source(f'# %% id="planted"\n{code}\n')
    with pytest.raises(Exception, match=message):
        build.build(source, draft=True, report=lambda line: None)
    assert not build.notebook_path(source).exists()


def view(**data: str) -> NotebookNode:
    return new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, **data})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (new_output("stream", name="stderr", text="a warning"), "cell planted writes to stderr: a warning"),
        (new_output("execute_result", data={"text/plain": "<A at 0x7f5b126098d0>"}), "shows an object's address"),
        (new_output("stream", text="see /home/author/course/a.py"), "shows a folder of this machine: /home/author"),
        (view(**{"text/plain": "IntSlider(value=0)"}), "displays a widget without a picture"),
    ],
)
def test_an_output_that_cannot_be_kept_is_refused(build, output, message):
    notebook = new_notebook(cells=[new_code_cell("planted", id="planted", outputs=[output])])
    with pytest.raises(build.BuildError, match=message):
        build.publish(notebook, ("/home/author",))


def test_this_machines_folders_are_looked_for(build):
    assert str(ROOT) in build.private_folders()


def test_the_tag_stderr_ok_forgives_stderr(build):
    outputs = [new_output("stream", name="stderr", text="on purpose")]
    tagged = new_code_cell("1", outputs=outputs, metadata={"tags": ["stderr-ok"]})
    build.publish(new_notebook(cells=[tagged]))
    assert tagged.outputs == outputs


def test_a_chapter_out_of_form_late_or_large_is_published_as_a_draft_at_most(build, course, monkeypatch):
    monkeypatch.setattr(build, "execute", lambda notebook, **options: 91.4)
    with pytest.raises(build.BuildError, match="took 91 s, the budget is 90 s"):
        build.build(course)
    lines: list[str] = []
    build.build(course, draft=True, report=lines.append)
    assert "took 91 s, the budget is 90 s" in lines[0]
    monkeypatch.setattr(build, "MAX_NOTEBOOK_BYTES", 100)
    with pytest.raises(build.BuildError, match="at most 100"):
        build.build(course)
    course.write_text('# %% [markdown]\n# no title\n\n# %%\nprint("text")\n')
    with pytest.raises(build.BuildError, match="the first cell is not a markdown cell with the title"):
        build.build(course)


def test_a_live_widget_gives_way_to_its_picture(build):
    output = view(**{"image/png": "iVBORw0KGgo=", "text/html": "<p>alt</p>"})
    notebook = new_notebook(cells=[new_code_cell("show(x)", outputs=[output])])
    notebook.metadata["widgets"] = {"state": {}}
    notebook.cells[0].metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    build.publish(notebook)
    assert set(notebook.cells[0].outputs[0].data) == {"image/png", "text/html"}
    assert "widgets" not in notebook.metadata
    assert notebook.cells[0].metadata == {}


def test_pictures_are_not_searched_for_folders(build):
    bundle = {"text/html": '<img src="data:image/png;base64,AAAA/secret/AAAA">', "image/png": "/secret/"}
    notebook = new_notebook(cells=[new_code_cell("x", outputs=[new_output("display_data", data=bundle)])])
    build.publish(notebook, ("/secret",))
    bundle["text/html"] += "/secret"
    notebook.cells[0].outputs[0].data.update(bundle)
    with pytest.raises(build.BuildError, match="/secret"):
        build.publish(notebook, ("/secret",))


def spoil_text(notebook: NotebookNode) -> None:
    notebook.cells[0].source += " "


def spoil_id(notebook: NotebookNode) -> None:
    notebook.cells[0].id = "another"


def spoil_tags(notebook: NotebookNode) -> None:
    notebook.cells[0].metadata.tags = []


def clear(notebook: NotebookNode) -> None:
    for one in notebook.cells:
        if one.cell_type == "code":
            one.update(outputs=[], execution_count=None)


def plant_error(notebook: NotebookNode) -> None:
    error = new_output("error", ename="KeyError", evalue="1", traceback=[])
    cell(notebook, "check-double").outputs = [error]


def plant_widget(notebook: NotebookNode) -> None:
    cell(notebook, "check-double").outputs = [view()]


def plant_state(notebook: NotebookNode) -> None:
    notebook.metadata["widgets"] = {"state": {}}


def run_out_of_turn(notebook: NotebookNode) -> None:
    cell(notebook, "check-double").execution_count = 99


def grow(notebook: NotebookNode) -> None:
    cell(notebook, "check-double").outputs = [new_output("stream", text="x" * 1_500_000)]


STALE = [
    (spoil_text, "01_sample.ipynb was edited by hand"),
    (spoil_id, "01_sample.ipynb was edited by hand"),
    (spoil_tags, "01_sample.ipynb was edited by hand"),
    (clear, "no cell has an output"),
    (plant_error, "cell check-double raised KeyError"),
    (plant_widget, "cell check-double holds a live widget"),
    (plant_state, "it holds widget state"),
    (run_out_of_turn, "cell check-double was not run in its turn"),
    (grow, "at most 1,500,000"),
]


@pytest.mark.parametrize(("spoil", "message"), STALE, ids=[spoil.__name__ for spoil, _ in STALE])
def test_the_check_notices_a_spoiled_notebook(build, course, spoil, message):
    notebook = read(course)
    spoil(notebook)
    write(course, notebook)
    found = build.problems(course)
    assert any(message in one for one in found), found


def test_the_check_notices_a_changed_source(build, course):
    course.write_text(course.read_text().replace("## Summary", "## Summary in short"))
    assert build.problems(course) == ["01_sample.py changed since 01_sample.ipynb was built"]
    assert build.differences(course) != []


def test_the_check_notices_what_is_missing_unreadable_or_without_a_source(build, course):
    path = build.notebook_path(course)
    path.write_text("{")
    assert "cannot be read" in build.problems(course)[0]
    path.unlink()
    assert build.problems(course) == ["01_sample.ipynb has not been built"]
    (path.parent / "09_left_over.ipynb").write_text("{}")
    assert build.orphans(path.parent) == ["09_left_over.ipynb has no source"]


def test_the_command_builds_what_changed_and_checks_the_rest(build, course, monkeypatch, capsys):
    monkeypatch.setattr(build, "NOTEBOOKS", course.parent.parent)
    assert build.main(["--check"]) == 0
    assert build.main(["01"]) == 0
    assert "01_sample.ipynb: unchanged" in capsys.readouterr().out
    course.write_text(course.read_text().replace("## Summary", "## Summary in short"))
    assert build.main(["--check"]) == 1
    assert "changed since" in capsys.readouterr().out
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    assert build.main(["07"]) == 1
    assert "No source for 07" in capsys.readouterr().err
    course.write_text(course.read_text().replace("# A sample", "A sample"))
    assert build.main([]) == 1
    assert "breaks the form" in capsys.readouterr().err


def test_a_self_test_that_prints_something_else_fails_under_nbval(course):
    folder = course.parent.parent
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    notebook = read(course)
    cell(notebook, "check-double").outputs[0].text = "double(21) returned 41\n"
    nbformat.write(notebook, folder / "02_wrong.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-q", "-rf", "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    code_cells = sum(one.cell_type == "code" for one in notebook.cells)
    assert f"1 failed, {2 * code_cells - 1} passed" in run.stdout, run.stdout
    assert "FAILED 02_wrong.ipynb" in run.stdout
    assert "double(21) returned 41" in run.stdout
    assert run.returncode == 1
