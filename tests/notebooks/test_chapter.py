"""The chapters themselves: fresh, in form, and, as a learner gets them, running to the end and giving nothing away."""

import copy
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from benchmarks.kernel.cell import gpu_cells
from servelab.course import content
from servelab.course.watching import KEEP, RECORDS
from servelab.course.workspace import learner_edition
from servelab.trace.kernel import KernelRecord

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
CHAPTERS = ("00_start_here", "01_the_bottleneck", "02_paged_attention")
MAX_SECONDS = 90
NOT_DONE = "Not done yet"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_ran: dict[tuple[str, bool], tuple[NotebookNode, float, Path]] = {}


@pytest.fixture(params=CHAPTERS)
def source(request) -> Path:
    return NOTEBOOKS / "source" / f"{request.param}.py"


@pytest.fixture
def learner(build, source, tmp_path) -> NotebookNode:
    """The learner's edition of a chapter after Run All, run once for all tests of this file."""
    return run(build, source, tmp_path, path55=False)[0]


def run(build, source: Path, folder: Path, *, path55: bool) -> tuple[NotebookNode, float, Path]:
    """Execute the learner's edition, or the cells of the 55-minute path alone, away from the repository.

    Returns the notebook, seconds, and the folder with what its kernels did.
    """
    if (source.stem, path55) not in _ran:
        notebook = learner_edition(build.notebook_path(source))
        if path55:
            notebook.cells = [cell for cell in notebook.cells if "path55" in cell.metadata.get("tags", [])]
        records = folder / "records"
        records.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(KEEP, str(records))
            seconds = build.execute(notebook, folder=folder, solved=False)
        _ran[source.stem, path55] = notebook, seconds, records
    return _ran[source.stem, path55]


def text_of(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def premature(form, notebook: NotebookNode) -> list[str]:
    """Cells of an executed learner's edition that show something between a prediction and its folded result.

    A widget that waits may stand there, and a self-test; text and pictures may not.
    """
    calls, found = form.calls(notebook), []
    starts = {call.argument: call.cell for call in calls if call.name == "predict"}
    ends = {call.argument: call.cell for call in calls if call.name == "reveal"}
    for name, start in starts.items():
        for cell in notebook.cells[start + 1 : ends[name] + 1]:
            waiting = all(WIDGET_VIEW in output.get("data", {}) for output in cell.get("outputs", []))
            if not waiting and "self-test" not in cell.metadata.get("tags", []):
                found.append(f"cell {cell.id} shows a result before {name} is answered")
    return found


def secrets_of(chapter: content.Chapter) -> list[str]:
    """Sentences that a learner reads only after committing an answer: the longest piece of each."""
    sentences = [one.explanation for one in chapter.predictions]
    sentences += [choice.why for one in chapter.predictions for choice in one.choices]
    items = [item for quiz in chapter.quizzes for item in quiz.items] + [ready.item for ready in chapter.readiness]
    sentences += [choice.why for item in items for choice in item.choices]
    sentences += [point for words in chapter.own_words for point in words.points]
    changed_on_the_way = r"\{[^}]*\}|[`*_'\"&<>|\n]"  # placeholders, Markdown, and what HTML escapes
    literal = [max(re.split(changed_on_the_way, sentence), key=len).strip() for sentence in sentences]
    return [words for words in literal if len(words) >= 16]


def leaked(notebook: NotebookNode, secrets: list[str]) -> list[str]:
    """Which of these sentences stand anywhere in the executed notebook, the state of its widgets included."""
    whole = json.dumps(notebook, ensure_ascii=False)
    return [secret for secret in secrets if json.dumps(secret, ensure_ascii=False)[1:-1] in whole]


def test_every_source_is_a_chapter_that_this_file_tests(build):
    assert [source.stem for source in build.sources(NOTEBOOKS)] == list(CHAPTERS)
    assert build.orphans(NOTEBOOKS) == []


def test_the_notebook_is_fresh_complete_and_in_form(build, source):
    assert build.problems(source) == []


def test_jupytext_reads_the_same_cells_with_the_same_ids(build, source):
    pytest.importorskip("jupytext", reason="jupytext is an author's tool: pip install 'servelab[author]'")
    assert build.differences(source) == []
    assert [cell.id for cell in build.read_source(source).cells] == [
        cell.id for cell in build.read_source(source).cells
    ]


def test_the_solved_edition_passes_its_self_tests_and_warns_of_nothing(build, source):
    notebook = nbformat.read(build.notebook_path(source), as_version=4)
    tests = [cell for cell in notebook.cells if "self-test" in cell.metadata.get("tags", [])]
    assert all(text_of(cell).startswith("Passed") for cell in tests), [text_of(cell) for cell in tests]
    streams = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"
    ]
    assert streams == []


def test_the_learners_edition_runs_from_top_to_bottom_in_time(build, source, tmp_path, record_property):
    notebook, seconds, _ = run(build, source, tmp_path, path55=False)
    record_property("seconds", round(seconds, 1))
    assert seconds < MAX_SECONDS
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert outputs, "nothing was shown"


def test_the_learners_self_tests_say_not_done_yet(learner):
    tests = [cell for cell in learner.cells if "self-test" in cell.metadata.get("tags", [])]
    assert [text_of(cell)[: len(NOT_DONE)] for cell in tests] == [NOT_DONE] * len(tests)
    solutions = [cell.id for cell in learner.cells if "SOLUTION" in cell.source]
    assert solutions == []


def test_the_learner_sees_no_result_before_a_prediction(form, learner):
    assert premature(form, learner) == []


def test_nothing_that_explains_an_answer_reaches_the_browser_before_it(learner, source):
    secrets = secrets_of(content.chapter(source.stem[:2]))
    assert len(secrets) >= 8
    assert leaked(learner, secrets) == []


@pytest.mark.slow
def test_the_55_minute_path_runs_on_its_own(build, form, source, tmp_path):
    notebook, seconds, _ = run(build, source, tmp_path, path55=True)
    assert sum(cell.cell_type == "code" for cell in notebook.cells) >= 3
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert errors == []
    assert premature(form, notebook) == []
    assert seconds < MAX_SECONDS


@pytest.fixture
def waiting() -> NotebookNode:
    """A prediction, a computation and a folded result, as a learner's kernel leaves them."""
    view = new_output("display_data", data={WIDGET_VIEW: {"model_id": "a"}, "text/plain": "run this cell"})
    sources = ('predict("01.a")', "seconds = 1", 'reveal(\n    "01.a", seconds)', "print(seconds)")
    cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    cells[0].outputs, cells[2].outputs = [view], [copy.deepcopy(view)]
    cells[3].outputs = [new_output("stream", text="1\n")]
    return new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("number", "output"),
    [
        (1, new_output("stream", text="1\n")),
        (1, new_output("execute_result", data={"text/plain": "1"}, execution_count=1)),
        (1, new_output("display_data", data={"image/png": ""})),
        (2, new_output("display_data", data={"text/html": "1 s"})),
    ],
)
def test_a_result_shown_too_early_is_noticed(form, waiting, number, output):
    assert premature(form, waiting) == []
    waiting.cells[number].outputs.append(output)
    assert premature(form, waiting) == [f"cell cell-{number} shows a result before 01.a is answered"]


def test_a_leaked_explanation_is_noticed(waiting):
    secret = 'Each token stores one "K" and one V'
    assert leaked(waiting, [secret]) == []
    waiting.metadata["widgets"] = {"state": {"view": {"html": f"<p>{secret}, and more</p>"}}}
    assert leaked(waiting, [secret]) == [secret]


def test_where_triton_does_not_run_the_records_are_those_of_the_chapter(build, source, tmp_path):
    pytest.importorskip("triton", reason="no Triton for this system: nothing to compare the records with")
    number = source.stem[:2]
    fresh = {path.name: KernelRecord.load(path) for path in run(build, source, tmp_path, path55=False)[2].iterdir()}
    kept = {path.name: KernelRecord.load(path) for path in RECORDS.glob(f"{number}.*.json")}
    assert sorted(fresh) == sorted(kept), f"run: python notebooks/build.py {number}"
    assert fresh == kept


def test_a_gpu_cell_stands_alone_and_the_solved_edition_shows_what_is_recorded(build, source, monkeypatch, capsys):
    """`make gpu` runs such cells one by one; here there is no GPU for them."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    notebook = nbformat.read(build.notebook_path(source), as_version=4)
    solved = [cell for cell in notebook.cells if "gpu" in cell.metadata.get("tags", [])]
    codes = gpu_cells(source.read_text(encoding="utf-8"))
    assert len(codes) == len(solved)
    for code, cell in zip(codes, solved, strict=True):
        exec(code, {"__name__": "__main__"})
        assert text_of(cell) == capsys.readouterr().out


def test_some_chapter_has_a_gpu_cell(build):
    assert any(gpu_cells(source.read_text(encoding="utf-8")) for source in build.sources(NOTEBOOKS))
