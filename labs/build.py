"""Make each lab's notebooks from its one marked source.

    python labs/build.py                                # every lab
    python labs/build.py 02                             # one lab
    python labs/build.py --check                        # nothing is written: are the notebooks fresh and in form?
    python labs/build.py --course-seed autumn --nbgrader COURSE     # a teacher's own numbers, as COURSE/source/NN_slug/

`NN_slug/source.py` (percent format, nbgrader's cell metadata, schema version 3) is what people edit. From it come
`NN_slug.ipynb`, the learner's (solutions replaced by stubs, hidden tests left out), and `solution.ipynb`, which is what
`nbgrader generate_assignment` takes. Points, minutes and difficulty stand with the tasks in `servelab.course.tasks`;
the source repeats them and `--check` compares. Needs `pip install -e .[author]`.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from servelab.course.tasks import tasks
from servelab.course.tasks.task import STANDARD_IMPORTS, Task
from servelab.course.workspace import learner_edition

LABS = Path(__file__).resolve().parent
HIDDEN = re.compile(
    r"\n*^[ \t]*### BEGIN HIDDEN TESTS[ \t]*$.*?^[ \t]*### END HIDDEN TESTS[ \t]*$", re.MULTILINE | re.DOTALL
)
COURSE_SEED = 'COURSE_SEED = "servelab"'
NBGRADER_KEYS = {"grade", "grade_id", "locked", "schema_version", "solution", "task"}
MIN_SHARE_NOT_FILL = 0.4


def sources(folder: Path = LABS) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9]_*/source.py"))


def read_source(source: Path) -> NotebookNode:
    """The whole notebook that a source describes, markers and hidden tests included, without outputs."""
    cells = []
    for cell in jupytext.read(source, fmt="py:percent").cells:
        metadata = {key: cell.metadata[key] for key in ("nbgrader",) if key in cell.metadata}
        if "nbgrader" in metadata:
            metadata["nbgrader"] = {**metadata["nbgrader"], "cell_type": cell.cell_type}
        if "nbgrader" in metadata and metadata["nbgrader"]["locked"]:
            metadata |= {"editable": False, "deletable": False}
        make = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")
        cells.append(make(cell.source, id=cell.metadata["id"], metadata=metadata))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def learner_notebook(solution: NotebookNode) -> NotebookNode:
    """What a learner gets: solutions become stubs that say which task it is, hidden tests are gone."""
    learner = learner_edition(solution)
    for cell, original in zip(learner.cells, solution.cells, strict=True):
        cell.metadata.update(original.metadata)
        cell.source = HIDDEN.sub("", cell.source)
    return learner


def editions(source: Path) -> dict[str, str]:
    """File name -> text of both notebooks."""
    whole = read_source(source)
    made = {f"{source.parent.name}.ipynb": learner_notebook(whole), "solution.ipynb": whole}
    for notebook in made.values():
        notebook.metadata["servelab"] = {"source_sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
        nbformat.validate(notebook)
    return {name: nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n" for name, notebook in made.items()}


def problems(source: Path) -> list[str]:
    """What breaks the form of a lab, and which notebooks are not what the source makes; empty when all is well."""
    name, whole = source.parent.name, read_source(source)
    found = [f"{name}: {fault}" for fault in form_faults(whole, name[:2])]
    for file, text in editions(source).items():
        path = source.parent / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(f"{name}/{file} is not what {name}/source.py makes; run: python labs/build.py")
    return found


def form_faults(whole: NotebookNode, number: str) -> list[str]:
    """One sentence for each rule of a lab's form that this one breaks."""
    lab, found = tasks(f"lab{number}"), []
    graders = [cell.metadata["nbgrader"] for cell in whole.cells if "nbgrader" in cell.metadata]
    ids = [grader["grade_id"] for grader in graders]
    found += [f"grade id {one!r} is used twice" for one in sorted({one for one in ids if ids.count(one) > 1})]
    for grader in graders:
        keys = NBGRADER_KEYS | {"cell_type"} | ({"points"} if grader.get("grade") else set())
        if set(grader) != keys or grader["schema_version"] != 3:
            found.append(
                f"cell {grader.get('grade_id')} has nbgrader metadata {sorted(grader)}, expected {sorted(keys)}"
            )
    points = {one["grade_id"]: one["points"] for one in graders if one.get("grade")}
    wanted = {f"{task.id.partition('.')[2]}-check": task.points for task in lab}
    if points != wanted:
        found.append(f"graded cells {points}, the tasks say {wanted}")
    title = whole.cells[0].source
    for place, task in enumerate(lab, 1):
        short = task.id.partition(".")[2]
        words = (f"| {place} `{short}` |", f"| {task.minutes} | {task.difficulty} | {task.points} |")
        if not any(all(word in line for word in words) for line in title.splitlines()):
            found.append(f"the title's table has no line with {' and '.join(words)}")
        if not any(
            f"{task.minutes} minutes · {task.difficulty} · {task.points} points" in c.source for c in whole.cells
        ):
            found.append(f"task {short} is announced without its minutes, difficulty and points")
        if not any(cell.id == f"{short}-text" and may_import(task) in cell.source.splitlines() for cell in whole.cells):
            found.append(f"task {short} is announced without the line {may_import(task)}")
    total, rest = sum(task.points for task in lab), sum(task.points for task in lab if task.kind != "fill")
    if f"{total} points" not in title:
        found.append(f"the title does not say {total} points")
    if rest < MIN_SHARE_NOT_FILL * total:
        found.append(f"{rest} of {total} points are not fill, expected at least {MIN_SHARE_NOT_FILL:.0%}")
    return found


def may_import(task: Task) -> str:
    """The line of a task's text that names the modules which an answer may import."""
    return f"*May import:* {', '.join(f'`{name}`' for name in (*STANDARD_IMPORTS, *task.allowed_imports))}."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the labs' notebooks from their sources.")
    parser.add_argument("labs", nargs="*", help="lab numbers or names, such as 02; all when none is given")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when something is stale or out of form"
    )
    parser.add_argument("--course-seed", default="servelab", help="a word that a teacher's numbers are drawn from")
    parser.add_argument("--nbgrader", type=Path, help="an nbgrader course folder; the labs go into its source/")
    options = parser.parse_args(arguments)
    if options.course_seed != "servelab" and options.nbgrader is None:
        parser.error("--course-seed goes with --nbgrader: the labs that stand here keep the course's own seed")
    chosen = [source for source in sources() if not options.labs or source.parent.name.startswith(tuple(options.labs))]
    if not chosen:
        print(f"No lab {', '.join(options.labs)} in {LABS}", file=sys.stderr)
        return 1
    if options.check:
        found = [problem for source in chosen for problem in problems(source)]
        print("\n".join(found) if found else f"{len(chosen)} labs are fresh and keep the form")
        return 1 if found else 0
    for source in chosen:
        name = source.parent.name
        if faults := form_faults(read_source(source), name[:2]):
            print("\n  ".join([f"{name} breaks the form of a lab:", *faults]), file=sys.stderr)
            return 1
        for file, text in editions(source).items():
            if options.nbgrader is None:
                (source.parent / file).write_text(text, encoding="utf-8")
            elif file == "solution.ipynb":
                target = options.nbgrader / "source" / name / f"{name}.ipynb"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(seeded(text, options.course_seed), encoding="utf-8")
        print(f"{name}: made")
    return 0


def seeded(text: str, course_seed: str) -> str:
    """A notebook's text with the teacher's word in it. Raises ValueError for one that a string cannot hold as it is."""
    if not re.fullmatch(r"[\w .-]{1,60}", course_seed):
        raise ValueError(f"expected a course seed of letters, digits, spaces, dots and hyphens, got {course_seed!r}")
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(COURSE_SEED, f'COURSE_SEED = "{course_seed}"')
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"


if __name__ == "__main__":
    sys.exit(main())
