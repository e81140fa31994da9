"""The form of a chapter, as far as a machine can check it.

`violations(notebook, number)` reads the solved edition (outputs are not looked at) and returns one sentence for every
broken rule. What only a reader can judge is not here.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

MAX_CORE_CELLS = 45
MAX_CODE_LINES = 20
MAX_PROSE_LINES = 12
MAX_FUNCTION_LINES = 5
LINE_WIDTH = 120  # a longer line of prose fills several lines of the page
TAGS = {"core", "deeper", "path55", "self-test", "exercise", "solved-only", "stderr-ok", "gpu"}
CHECKED_OUTPUT = "# NBVAL_CHECK_OUTPUT"
SECTIONS = ("When does it lose", "Misconception", "Summary")
START = "00"  # the chapter that opens the course teaches the form instead of a topic
CHAPTER_IDS = {"predict", "reveal", "check", "hint", "quiz", "own_words", "goals", "on_gpu"}


@dataclass(frozen=True)
class Call:
    """A call of a bare name in a code cell: `predict("01.kv-curve")` in cell number `cell`."""

    name: str
    argument: str | None
    cell: int


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def syntax_tree(cell: NotebookNode) -> ast.Module:
    """The cell as Python; an empty module where it has a magic that only IPython can read."""
    try:
        return ast.parse(cell.source)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def calls(notebook: NotebookNode) -> list[Call]:
    """Every call of a bare name, in the order of the cells, with its first argument where that is a string."""
    found = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        nodes = [node for node in ast.walk(syntax_tree(cell)) if isinstance(node, ast.Call)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(node.func, ast.Name):
                first = node.args[0] if node.args else None
                text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
                found.append(Call(node.func.id, text, index))
    return found


def code_lines(source: str) -> int:
    """Lines that a learner reads: blank lines and solution markers are not counted."""
    return sum(1 for line in source.splitlines() if line.strip() and not line.strip().startswith("###"))


def prose_lines(source: str) -> int:
    return sum(math.ceil(len(line) / LINE_WIDTH) for line in source.splitlines() if line.strip())


def violations(notebook: NotebookNode, number: str) -> list[str]:
    """One sentence per broken rule of chapter `number` ("00", "01", ...); an empty list when the form is kept."""
    made = calls(notebook)
    return [
        *_title(notebook, number),
        *_cells(notebook),
        *_calls_of_chapter(made, number),
        *_predictions(made, number),
        *_gpu_cells(notebook, made),
        *_exercises(notebook, made, number),
        *_sections(notebook, number),
    ]


def _gpu_cells(notebook: NotebookNode, made: list[Call]) -> Iterator[str]:
    """What needs a GPU shows what was recorded where there is none, and is run on GPU machines by its tag."""
    shown = {call.cell for call in made if call.name == "on_gpu"}
    for index, cell in enumerate(notebook.cells):
        if (index in shown) != ("gpu" in tags(cell)):
            yield f"cell {cell.id}: the tag gpu and on_gpu(...) go together"


def _title(notebook: NotebookNode, number: str) -> Iterator[str]:
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield "the first cell is not a markdown cell with the title"
        return
    for what, pattern in (
        ("minutes", r"\b\d+ minutes\b"),
        ("difficulty", r"[Dd]ifficulty"),
        ("hardware", r"\b[CG]PU\b"),
    ):
        if not re.search(pattern, first.source):
            yield f"the title cell does not state the {what}"
    if not any("path55" in tags(cell) for cell in notebook.cells):
        yield f"no cell of chapter {number} is on the 55-minute path (tag path55)"


def _cells(notebook: NotebookNode) -> Iterator[str]:
    core = sum(1 for cell in notebook.cells if "deeper" not in tags(cell))
    if core > MAX_CORE_CELLS:
        yield f"{core} core cells, at most {MAX_CORE_CELLS}: tag what goes deeper, or split"
    for identifier, count in Counter(cell.id for cell in notebook.cells).items():
        if count > 1:
            yield f"cell {identifier}: the id is used {count} times"
    deeper = False
    for cell in notebook.cells:
        if unknown := tags(cell) - TAGS:
            yield f"cell {cell.id}: unknown tag {', '.join(sorted(unknown))}"
        if "deeper" in tags(cell) and not deeper and "Deeper" not in cell.source:
            yield f"cell {cell.id}: a deeper part begins without a heading that says Deeper"
        deeper = "deeper" in tags(cell)
        if cell.cell_type == "markdown":
            if (lines := prose_lines(cell.source)) > MAX_PROSE_LINES:
                yield f"cell {cell.id}: {lines} lines of prose, at most {MAX_PROSE_LINES}"
        elif cell.cell_type == "code":
            yield from _code(cell)
        else:
            yield f"cell {cell.id}: a {cell.cell_type} cell has no place in a chapter"


def _code(cell: NotebookNode) -> Iterator[str]:
    if (lines := code_lines(cell.source)) > MAX_CODE_LINES:
        yield f"cell {cell.id}: {lines} lines of code, at most {MAX_CODE_LINES}"
    if "exercise" in tags(cell):
        return
    for node in ast.walk(syntax_tree(cell)):
        if isinstance(node, ast.ClassDef):
            yield f"cell {cell.id}: class {node.name} belongs into the package"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"cell {cell.id}: function {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"


def _calls_of_chapter(made: list[Call], number: str) -> Iterator[str]:
    names = [call.name for call in made]
    for call in made:
        if call.name in CHAPTER_IDS and not re.match(rf"{number}(\.|$)", call.argument or ""):
            yield f'{call.name}("{call.argument}") in chapter {number}: the id does not start with {number}'
    if "goals" not in names:
        yield f'goals("{number}") is missing'
    if number == START:
        if "readiness" not in names:
            yield "readiness() is missing"
        return
    for name in ("own_words", "source", "machine", "show"):
        if name not in names:
            yield f"{name}(...) is missing"
    if not any(name.endswith("Widget") for name in names):
        yield "no widget is shown"
    if not any(call.name == "quiz" and call.argument == number for call in made):
        yield f'quiz("{number}") is missing'
    retrieval = [call.cell for call in made if call.name == "quiz" and call.argument == f"{number}.retrieval"]
    predictions = [call.cell for call in made if call.name == "predict"]
    if not retrieval or (predictions and retrieval[0] > predictions[0]):
        yield f'quiz("{number}.retrieval") does not come before the first prediction'


def _predictions(made: list[Call], number: str) -> Iterator[str]:
    predicted = [call for call in made if call.name == "predict"]
    revealed = [call for call in made if call.name == "reveal"]
    least = 1 if number == START else 2
    if len(predicted) < least:
        yield f"{len(predicted)} predictions, at least {least}"
    for kind in (predicted, revealed):
        for (name, argument), count in Counter((call.name, call.argument) for call in kind).items():
            if count > 1:
                yield f'{name}("{argument}") stands {count} times'
    for call in predicted:
        if not any(other.argument == call.argument and other.cell > call.cell for other in revealed):
            yield f'predict("{call.argument}") has no reveal in a later cell'
    for call in revealed:
        if not any(other.argument == call.argument and other.cell < call.cell for other in predicted):
            yield f'reveal("{call.argument}") has no prediction in an earlier cell'


def _exercises(notebook: NotebookNode, made: list[Call], number: str) -> Iterator[str]:
    checked = {call.cell for call in made if call.name == "check"}
    solutions = set()
    for index, cell in enumerate(notebook.cells):
        if "### BEGIN SOLUTION" in cell.source:
            solutions.add(index)
        first = cell.source.partition("\n")[0]
        marked = "self-test" in tags(cell), first == CHECKED_OUTPUT, index in checked
        if any(marked) and not all(marked):
            yield f"cell {cell.id}: a self-test has the tag self-test, first line {CHECKED_OUTPUT} and a check(...)"
        if (index in solutions) != ("exercise" in tags(cell)):
            yield f"cell {cell.id}: the tag exercise and the solution markers go together"
    for index in solutions:
        if not any(cell > index for cell in checked):
            yield f"cell {notebook.cells[index].id}: no self-test follows this exercise"
    if number != START and not solutions:
        yield "no exercise"


def _sections(notebook: NotebookNode, number: str) -> Iterator[str]:
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    headings = " ".join(re.findall(r"^#+ .*$|\*\*[^*\n]+\*\*", "\n".join(prose), flags=re.MULTILINE)).lower()
    for section in ("Sources", "Next") if number == START else (*SECTIONS, "Sources", "Next"):
        if section.lower() not in headings:
            yield f"no heading says: {section}"
