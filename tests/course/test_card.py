"""The card in a real JupyterLab: answered by keyboard, it unfolds the result below; nothing is in the page before."""

import os
from pathlib import Path

import nbformat
import pytest
from harness import lab, missing

from servelab.course.card import Card, button

ROOT = Path(__file__).parents[2]
CELLS = (
    "import sys; sys.path.insert(0, {tests!r}); import demo_chapter; sys.modules.update(demo_chapter.MODULES)\n"
    "from servelab.course import predict, quiz, reveal",
    "predict('99.seconds')",
    "reveal('99.seconds', {{'actual': 64.2, 'tokens': 64}}, 'SECRET **text**')",
    "quiz('99')",
)


def test_only_a_button_that_is_shown_acts():
    done = []
    card = Card({"buttons": [button("commit", "Commit")]}, lambda name, values: done.append((name, dict(values))))
    card.act("skip")
    card._receive(card, {"action": "commit", "values": {"answer": "1"}}, [])
    card._receive(card, {"values": 3}, [])
    assert done == [("commit", {"answer": "1"})]


@pytest.fixture
def page(tmp_path):
    if reason := missing():
        if os.environ.get("SERVELAB_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    cells = [nbformat.v4.new_code_cell(cell.format(tests=str(ROOT / "tests" / "course"))) for cell in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "sample.ipynb")
    with lab(tmp_path, env={"PYTHONPATH": str(ROOT / "src"), "SERVELAB_SEED": "1"}) as page:
        page.open_nb("sample.ipynb")
        page.run_all()
        yield page


@pytest.mark.browser
def test_a_prediction_is_committed_by_keyboard_and_its_result_unfolds(page):
    cards = page.locator(".servelab-card")
    cards.nth(2).wait_for(timeout=30_000)
    assert "SECRET" not in page.locator(".jp-OutputArea-output").all_inner_texts().__str__()
    box = page.get_by_label("Your prediction")
    box.fill("abc")
    box.press("Enter")
    page.get_by_role("alert").wait_for(timeout=10_000)
    assert "'abc' is not a number" in page.get_by_role("alert").inner_text()
    page.get_by_label("Your prediction").fill("12")
    page.get_by_label("Your prediction").press("Enter")
    page.get_by_text("Too low, by a factor of 5.35").wait_for(timeout=10_000)
    assert page.get_by_text("SECRET-WHY").count() == 1
    assert page.get_by_text("You predict: 12 s").count() == 1

    page.get_by_label("They double.").focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")  # moves the choice, not the notebook's selected cell
    assert page.get_by_label("They grow fourfold.").is_checked()
    page.get_by_label("Certain").check()
    page.get_by_role("button", name="Commit").press("Enter")
    page.get_by_text("Your choice, wrong").wait_for(timeout=10_000)
    assert page.faults == []
