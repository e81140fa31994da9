"""Each rule of a chapter's form is broken once, and has to be noticed."""

from collections.abc import Callable

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell

Plant = Callable[[NotebookNode], object]


@pytest.fixture
def chapter(build, make_source, sample_source) -> NotebookNode:
    return build.read_source(make_source(sample_source))


def named(notebook: NotebookNode, identifier: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == identifier)


def replace(old: str, new: str) -> Plant:
    """Replace text wherever it stands in a cell; it has to stand somewhere."""

    def plant(notebook: NotebookNode) -> None:
        assert any(old in cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)

    return plant


def append(*cells: NotebookNode) -> Plant:
    return lambda notebook: notebook.cells.extend(cells)


def tagged(identifier: str, *tags: str) -> Plant:
    return lambda notebook: named(notebook, identifier).metadata.update(tags=list(tags))


def off_the_path(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata["tags"] = [tag for tag in cell.metadata.get("tags", []) if tag != "path55"]


def move_to_front(identifier: str) -> Plant:
    def plant(notebook: NotebookNode) -> None:
        cell = named(notebook, identifier)
        notebook.cells.remove(cell)
        notebook.cells.insert(1, cell)

    return plant


LONG_FUNCTION = "def f():\n" + "\n".join(f"    x{i} = {i}" for i in range(5))

PLANTED: list[tuple[Plant, str]] = [
    (lambda notebook: notebook.cells.pop(0), "the first cell is not a markdown cell with the title"),
    (replace("# A sample", "A sample"), "the first cell is not a markdown cell with the title"),
    (replace("60 minutes", "an hour"), "the title cell does not state the minutes"),
    (replace("difficulty", "level"), "the title cell does not state the difficulty"),
    (replace("CPU", "machine"), "the title cell does not state the hardware"),
    (off_the_path, "no cell of chapter 01 is on the 55-minute path"),
    (append(*[new_markdown_cell("text") for _ in range(46)]), "core cells, at most 45"),
    (append(new_code_cell("1", id="title")), "cell title: the id is used 2 times"),
    (tagged("title", "path-55"), "cell title: unknown tag path-55"),
    (append(new_markdown_cell("More", metadata={"tags": ["deeper"]})), "a deeper part begins without a heading"),
    (append(new_markdown_cell("line\n" * 13)), "13 lines of prose, at most 12"),
    (append(new_markdown_cell("word " * 320)), "14 lines of prose, at most 12"),
    (append(new_code_cell("a = 1\n" * 21)), "21 lines of code, at most 20"),
    (append(new_raw_cell("text")), "a raw cell has no place in a chapter"),
    (append(new_code_cell("class A:\n    pass")), "class A belongs into the package"),
    (append(new_code_cell(LONG_FUNCTION)), "function f has 6 lines, at most 5"),
    (append(new_code_cell('hint("02.double")')), 'hint("02.double") in chapter 01: the id does not start with 01'),
    (append(new_code_cell("hint(x)")), "in chapter 01: the id does not start with 01"),
    (append(new_code_cell('on_gpu("01.a", "ms", measure)')), "the tag gpu and on_gpu(...) go together"),
    (tagged("task-double", "exercise", "gpu"), "cell task-double: the tag gpu and on_gpu(...) go together"),
    (replace('goals("01")', ""), 'goals("01") is missing'),
    (replace('own_words("01.double")', ""), "own_words(...) is missing"),
    (replace('source("double")', ""), "source(...) is missing"),
    (replace("machine()", ""), "machine(...) is missing"),
    (replace('show(PageTableWidget("a trace"))', ""), "show(...) is missing"),
    (replace("PageTableWidget(", "str("), "no widget is shown"),
    (replace('quiz("01")', ""), 'quiz("01") is missing'),
    (replace('quiz("01.retrieval")', ""), 'quiz("01.retrieval") does not come before the first prediction'),
    (move_to_front("double-predict"), 'quiz("01.retrieval") does not come before the first prediction'),
    (replace('predict("01.edition")', ""), "1 predictions, at least 2"),
    (replace('predict("01.edition")', ""), 'reveal("01.edition") has no prediction in an earlier cell'),
    (replace('reveal("01.double", doubled)', ""), 'predict("01.double") has no reveal in a later cell'),
    (move_to_front("double-reveal"), 'predict("01.double") has no reveal in a later cell'),
    (append(new_code_cell('reveal("01.double", 1)')), 'reveal("01.double") stands 2 times'),
    (tagged("check-double"), "cell check-double: a self-test has the tag self-test"),
    (replace("# NBVAL_CHECK_OUTPUT", "#"), "cell check-double: a self-test has the tag self-test"),
    (tagged("task-double"), "cell task-double: the tag exercise and the solution markers go together"),
    (lambda notebook: notebook.cells.append(named(notebook, "task-double")), "no self-test follows this exercise"),
    (replace("### BEGIN SOLUTION", "###"), "no exercise"),
    (replace("## When does it lose?", "When does it lose?"), "no heading says: When does it lose"),
    (replace("Misconception", "Mistake"), "no heading says: Misconception"),
    (replace("## Summary", ""), "no heading says: Summary"),
    (replace("## Sources", ""), "no heading says: Sources"),
    (replace("## Next", "## Later"), "no heading says: Next"),
]


def test_a_chapter_in_form_has_no_violation(form, chapter):
    assert form.violations(chapter, "01") == []


@pytest.mark.parametrize(("plant", "message"), PLANTED, ids=[message for _, message in PLANTED])
def test_a_planted_violation_is_named(form, chapter, plant, message):
    plant(chapter)
    found = form.violations(chapter, "01")
    assert any(message in one for one in found), found


def test_deeper_cells_and_blank_lines_are_not_counted(form, chapter):
    deeper = [new_markdown_cell("## Deeper", metadata={"tags": ["deeper"]}) for _ in range(46)]
    chapter.cells.extend([*deeper, new_code_cell("a = 1\n\n" * 20)])
    assert form.violations(chapter, "01") == []


def test_the_opening_chapter_checks_readiness_instead_of_retrieval(form, chapter):
    for cell in chapter.cells:
        cell.source = cell.source.replace('"01', '"00')
    assert form.violations(chapter, "00") == ["readiness() is missing"]
    chapter.cells.append(new_code_cell("readiness()"))
    assert form.violations(chapter, "00") == []
