"""Chapter 2 as a learner meets it: Run All, then the page table by keyboard, against what the engine did."""

import ast
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from harness import LabPage, lab

from servelab.course.workspace import learner_edition

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = ROOT / "notebooks" / "02_paged_attention.ipynb"
PAGE_TABLE = '.servelab[aria-label="Page table"]'
ASK_KERNEL = """async (expression) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const request = {code: "", store_history: false, user_expressions: {value: expression}};
  const reply = await kernel.requestExecute(request).done;
  const value = reply.content.user_expressions.value;
  return value.status === "ok" ? value.data["text/plain"] : JSON.stringify(value);
}"""
WIDGETS = """
import json
from ipywidgets.widgets.widget import _instances
from servelab.widgets import PageTableWidget
def shown_widgets(): return [one for one in _instances.values() if isinstance(one, PageTableWidget)]
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[LabPage]:
    """The learner's chapter 2, open in JupyterLab, after Run All."""
    workspace = tmp_path_factory.mktemp("workspace")
    nbformat.write(learner_edition(CHAPTER), workspace / CHAPTER.name)
    with lab(workspace, env={"HF_HUB_OFFLINE": "1"}) as page:
        page.open_nb(CHAPTER.name)
        page.hide_sidebar()
        page.run_all()
        yield page


class Kernel:
    """Asks the notebook's own kernel: what do its objects hold?"""

    def __init__(self, page: LabPage) -> None:
        self.page = page
        self.value(f"exec({WIDGETS!r}, globals())")

    def value(self, expression: str) -> Any:
        """The value of a Python expression in the kernel, by way of JSON."""
        answer = self.page.evaluate(ASK_KERNEL, f"__import__('json').dumps({expression})")
        try:
            return json.loads(ast.literal_eval(answer))
        except (ValueError, SyntaxError) as error:
            raise AssertionError(f"the kernel answers {answer[:500]} to {expression}") from error

    def until(self, expression: str, holds: Callable[[Any], bool], timeout_s: float = 20) -> Any:
        """The value of the expression as soon as it is as wanted."""
        deadline = time.monotonic() + timeout_s
        while not holds(value := self.value(expression)):
            assert time.monotonic() < deadline, f"{expression} is still {value}"
            self.page.wait_for_timeout(100)
        return value


def shown_table(widget: Any) -> dict[int, int]:
    """Logical block -> physical block, read from the picture that the browser shows."""
    titles = widget.locator('svg rect[class^="sl-entry"] title').all_text_contents()
    pairs = [[int(number) for number in re.findall(r"\d+", title)] for title in titles]
    return dict(pairs)


def engine_table(kernel: Kernel, widget: str) -> list[int]:
    """The same from the trace that the engine recorded, at the moment the widget stands at."""
    state = f"{widget}.trace.state_at({widget}.step, {widget}.moment)"
    return kernel.value(f"list({state}.requests[{widget}.trace.index_of({widget}.request)].block_table)")


def assert_shown_is_recorded(kernel: Kernel, widget: Any, name: str) -> int:
    """The picture holds the engine's table; returns its length."""
    recorded = engine_table(kernel, name)
    deadline = time.monotonic() + 10
    while True:
        shown = shown_table(widget)
        left_out = len(recorded) - len(shown)
        same = all(recorded[logical] == physical for logical, physical in shown.items() if logical < len(recorded))
        if same and (left_out == 0 or widget.locator("svg", has_text="more full blocks").count()):
            return len(recorded)
        assert time.monotonic() < deadline, f"shown {shown}, recorded {recorded}"
        kernel.page.wait_for_timeout(100)


def test_run_all_runs_every_cell_and_reports_no_error(page):
    counts = page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets"
        ".filter((cell) => cell.model.type === 'code' && cell.model.sharedModel.source.trim())"
        ".map((cell) => cell.model.executionCount)"
    )
    assert len(counts) > 10
    assert all(counts), f"cells that were not run: {[number for number, count in enumerate(counts) if not count]}"
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    assert page.get_by_text("Error displaying widget").count() == 0
    assert page.get_by_text("Error creating widget").count() == 0


def test_the_page_table_plays_and_steps_by_keyboard_and_shows_the_engines_table(page):
    kernel = Kernel(page)
    widget = page.locator(PAGE_TABLE).locator("visible=true").first
    widget.scroll_into_view_if_needed()
    widget.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    playing = kernel.until("[n for n, one in enumerate(shown_widgets()) if one.playing]", bool)
    name = f"shown_widgets()[{playing[0]}]"
    kernel.until(f"{name}.tick", lambda tick: tick >= 2)
    page.keyboard.press("Space")
    kernel.until(f"{name}.playing", lambda playing: not playing)
    paused = kernel.value(f"{name}.tick")
    assert_shown_is_recorded(kernel, widget, name)

    lengths = set()
    for number in range(1, 4):
        page.keyboard.press("ArrowRight")
        kernel.until(f"{name}.tick", lambda tick, wanted=paused + number: tick == wanted)
        lengths.add(assert_shown_is_recorded(kernel, widget, name))
    page.keyboard.press("ArrowLeft")
    kernel.until(f"{name}.tick", lambda tick: tick == paused + 2)
    assert max(lengths) > 0, "no block was ever shown"
    page.keyboard.press("End")
    kernel.until(f"[{name}.tick, {name}.num_ticks - 1]", lambda pair: pair[0] == pair[1])
    assert_shown_is_recorded(kernel, widget, name)


def test_what_next_asks_before_a_decision_and_the_trace_answers(page):
    kernel = Kernel(page)
    widget = page.locator(PAGE_TABLE).locator("visible=true").first
    widget.scroll_into_view_if_needed()
    widget.focus()
    page.keyboard.press("Home")
    next_decision = widget.get_by_role("button", name="Next decision")
    next_decision.focus()
    page.keyboard.press("Enter")
    asked = kernel.until("[n for n, one in enumerate(shown_widgets()) if one.question]", bool)
    name = f"shown_widgets()[{asked[0]}]"
    widget.get_by_text("Which physical block takes").first.wait_for()
    assert widget.locator("p.sl-verdict").count() == 0

    step = f"{name}._ticks[{name}.tick + 1][0]"  # the step that comes next, and what it stores last
    own = f"{name}.trace.state_at({step}, 'computed').requests[{name}.trace.index_of({name}.request)]"
    block = kernel.value(f"{own}.block_table[({own}.num_computed_tokens - 1) // {name}.trace.block_size]")
    point_at(page, widget, block)
    page.keyboard.press("Enter")

    verdict = widget.locator("p.sl-verdict")
    verdict.wait_for()
    assert kernel.value(f"{name}.score") == [1, 1]
    assert "sl-good" in (verdict.get_attribute("class") or "")
    assert re.search(rf"block {block}\b", verdict.inner_text())
    assert_shown_is_recorded(kernel, widget, name)


def point_at(page: LabPage, widget: Any, block: int) -> None:
    """Move over the pool with the arrow keys until the picture says it stands on this block."""
    grid = widget.locator("svg g[role=button]")
    grid.wait_for()
    grid.focus()
    for _ in range(1000):
        here = int(re.search(r"\d+", grid.get_attribute("aria-label") or "")[0])
        if here == block:
            return
        page.keyboard.press("ArrowRight" if here < block else "ArrowLeft")
    raise AssertionError(f"the arrow keys do not reach block {block}")


def test_the_console_reports_no_error(page):
    assert page.faults == []
