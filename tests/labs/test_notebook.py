"""An untouched lab runs to its end, offline; nbgrader gives its solution all points and the starter none."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from servelab.course.tasks import tasks
from servelab.course.workspace import sync


def _environment(folder, **more):
    # nbgrader calls alembic by its bare name, so the folder of this Python's commands has to be on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "SERVELAB_DATA": str(folder / "data"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        **more,
    }


def test_workspace_gets_the_learners_lab(lab, labs, tmp_path):
    chapter = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A chapter")])
    (tmp_path / "notebooks").mkdir()
    nbformat.write(chapter, tmp_path / "notebooks" / "01_chapter.ipynb")
    shutil.copytree(labs / lab, tmp_path / "labs" / lab)
    report = sync(tmp_path)
    assert f"labs/{lab}.ipynb" in report.added
    copied = nbformat.read(tmp_path / "workspace" / "labs" / f"{lab}.ipynb", as_version=4)
    assert copied.cells == nbformat.read(labs / lab / f"{lab}.ipynb", as_version=4).cells
    assert len(list((tmp_path / "workspace" / "labs").glob("*.ipynb"))) == 1


@pytest.mark.slow
def test_untouched_lab_runs_to_its_end(lab, labs, tmp_path, smollm2):
    from nbclient import NotebookClient

    notebook = nbformat.read(labs / lab / f"{lab}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    start = time.perf_counter()
    client.execute(env=_environment(tmp_path))
    seconds = time.perf_counter() - start
    checks = [cell for cell in notebook.cells if "lab.check(" in cell.source and cell.cell_type == "code"]
    assert len(checks) == 5
    for cell in checks:
        assert "".join(output.text for output in cell.outputs).startswith("Not done yet")
    assert seconds < 60 or os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nbgrader_gives_the_solution_all_points_and_the_starter_none(lab, labs, tmp_path, smollm2):
    pytest.importorskip("nbgrader")
    course = tmp_path / "course"
    course.mkdir()
    (course / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'servelab'\n")
    environment = _environment(tmp_path, SERVELAB_GRADING_SEED="only the teacher knows")

    def run(*command):
        done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    nbgrader = (sys.executable, "-m", "nbgrader")
    run(sys.executable, labs / "build.py", lab, "--nbgrader", ".", "--course-seed", "autumn 2027")
    run(*nbgrader, "generate_assignment", lab)
    release = nbformat.read(course / "release" / lab / f"{lab}.ipynb", as_version=4)
    solution = nbformat.read(course / "source" / lab / f"{lab}.ipynb", as_version=4)
    solved = {cell.id: cell.source for cell in solution.cells if cell.metadata.get("nbgrader", {}).get("solution")}
    for student in ("right", "starter"):
        handed_in = nbformat.from_dict(release)
        for cell in handed_in.cells:
            if student == "right" and cell.id in solved:
                cell.source = solved[cell.id]
            if cell.id == "name":
                cell.source = f'LEARNER = "{student}"'
        folder = course / "submitted" / student / lab
        folder.mkdir(parents=True)
        nbformat.write(handed_in, folder / f"{lab}.ipynb")
    run(*nbgrader, "autograde", lab)
    total = sum(one.points for one in tasks(f"lab{lab[:2]}"))
    assert _scores(course, lab) == {"right": (total, total), "starter": (0, total)}


def _scores(course, lab):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        found = {one.student_id: one for one in book.assignment_submissions(lab)}
        return {student: (one.score, one.max_score) for student, one in found.items()}
