"""A page that is busy when a widget starts: anywidget gives up on it after two seconds, and the widget answers."""

from collections.abc import Iterator

import nbformat
import pytest
from harness import LATE, LabPage, lab

CELL = """
from servelab.course.card import Card, button
from servelab.course.display import show_widget
card = Card({"label": "Try", "body": "before", "buttons": [button("go", "Go")]})
card.on_action = lambda name, values: setattr(card, "view", {"label": "Try", "body": "after"})
show_widget(card, "a card")
"""
IMPATIENT = "{ const timeout = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = () => timeout(0); }"


BROKEN = """
import anywidget
class Broken(anywidget.AnyWidget):
    _esm = "export default { initialize() { throw new Error('a fault of its own'); }, render() {} }"
Broken()
"""


@pytest.fixture
def page(tmp_path) -> Iterator[LabPage]:
    cell = nbformat.v4.new_code_cell(CELL)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "late.ipynb")
    with lab(tmp_path) as page:
        page.add_init_script(IMPATIENT)
        page.open_nb("late.ipynb")
        page.run_all()
        yield page


def test_a_click_is_answered_although_the_model_started_too_late(page):
    assert page.locator(".servelab-card", has_text="before").count() == 1
    page.wait_for_timeout(500)
    page.get_by_role("button", name="Go").click()
    page.locator(".servelab-card", has_text="after").wait_for(timeout=10_000)
    assert LATE in page.errors, "the page was not late"
    assert page.faults == []


def test_a_widget_that_fails_for_another_reason_is_a_fault(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BROKEN)])
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    with lab(tmp_path) as page:
        page.open_nb("broken.ipynb")
        page.run_all()
        page.wait_for_timeout(1000)
        assert any("a fault of its own" in error for error in page.faults)
