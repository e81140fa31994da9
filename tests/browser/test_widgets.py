"""The widgets in a real JupyterLab: by keyboard and by mouse, in both themes, wide and narrow."""

import nbformat
import pytest
from harness import lab

ENGINE = """
from servelab.engine import Engine, EngineConfig
from servelab.model import toy_model
from servelab.sampling import SamplingParams
from servelab.widgets import KVCalculatorWidget, MemoryMapWidget, PageTableWidget
def run(**cache):
    engine = Engine(toy_model(), EngineConfig(max_num_seqs=4, max_model_len=32, block_size=4, **cache))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    for number, prompt_tokens in enumerate((7, 2, 9, 13)):
        engine.add_request(list(range(40, 40 + prompt_tokens)), params, f"R{number}")
    while engine.has_unfinished():
        engine.step()
    return engine.trace
paged, contiguous = run(num_blocks=14), run(num_blocks=16, kv_cache="contiguous")
"""
CELLS = [
    ENGINE,
    "table = PageTableWidget(paged, 'R0')\ntable",
    "map_ = MemoryMapWidget(contiguous, paged, labels=('reserve 32', 'blocks of 4'))\nmap_",
    "calculator = KVCalculatorWidget('Llama-3-8B', 'H100 SXM', batch_size=4, context_tokens=4096)\ncalculator",
]
UNNAMED = """() => [...document.querySelectorAll(".servelab button, .servelab select, .servelab input")]
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length)))
  .map((e) => e.outerHTML)"""
CLIPPED = """() => [...document.querySelectorAll(".servelab .sl-picture")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => [e.scrollWidth, e.clientWidth])"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One notebook, run once, for all tests of this file."""
    folder = tmp_path_factory.mktemp("widgets")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "widgets.ipynb")
    with lab(folder, height=1600) as opened:
        opened.open_nb("widgets.ipynb")
        opened.run_all()
        opened.hide_sidebar()
        opened.wait_for_function("() => document.querySelectorAll('.servelab .sl-picture > svg').length === 3")
        yield opened


def _widget(page, number):
    return page.locator(".servelab").nth(number)


def _until(page, expression):
    """Wait until a Python expression about the widgets is true."""
    for _attempt in range(40):
        if page.python(expression):
            return
        page.wait_for_timeout(150)
    raise AssertionError(f"never became true: {expression}")


def _shown_table(widget):
    """The numbers in the picture's block table, from top to bottom."""
    entries = widget.locator('svg text[class^="sl-t-entry"]')
    return [int(text) for text in entries.all_text_contents()] if entries.count() else []


def _keys(page, widget, *names):
    widget.focus()
    for name in names:
        page.keyboard.press(name)
        page.wait_for_timeout(250)


def test_stepping_by_keyboard_shows_the_engines_table(page):
    widget = _widget(page, 0)
    _keys(page, widget, "Home")
    _until(page, "table.tick == 0")
    seen = set()
    for tick in range(1, 13):
        _keys(page, widget, "ArrowRight")
        _until(page, f"table.tick == {tick}")
        page.wait_for_timeout(100)
        expected = page.python("paged.state_at(table.step, table.moment).requests[0].block_table")
        assert _shown_table(widget) == expected
        seen.add(len(expected))
    assert len(seen) > 1  # the table grew meanwhile
    _keys(page, widget, "ArrowLeft")
    _until(page, "table.tick == 11")
    _keys(page, widget, "End")
    _until(page, "table.tick == table.num_ticks - 1")
    assert "has finished" in widget.locator(".sl-caption").inner_text()


def test_space_plays_and_pauses(page):
    widget = _widget(page, 0)
    page.python("[setattr(table, 'asking', False), setattr(table, 'interval_ms', 100), setattr(table, 'step', 0)]")
    _keys(page, widget, " ")
    _until(page, "table.step >= 2")
    _keys(page, widget, " ")
    _until(page, "not table.playing")
    stopped = page.python("table.tick")
    page.wait_for_timeout(600)
    assert page.python("table.tick") == stopped
    assert widget.get_by_role("button", name="Play").count() == 1


def test_scrubbing_and_choosing_another_request(page):
    widget = _widget(page, 0)
    scrub = widget.get_by_role("slider", name="Moment of the run")
    scrub.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    _until(page, "table.tick == 1")
    widget.get_by_role("combobox", name="Request").select_option("R3")
    page.python("setattr(table, 'step', 3)")
    _until(page, "table.request == 'R3'")
    page.wait_for_timeout(300)
    assert _shown_table(widget) == page.python("paged.state_at(3, 'computed').requests[3].block_table")
    widget.get_by_role("combobox", name="Request").select_option("R0")


def test_what_next_by_keyboard_and_by_mouse(page):
    widget = _widget(page, 0)
    page.python("[setattr(table, 'step', 0), setattr(table, 'score', [0, 0])]")
    _until(page, "table.step == 0 and table.request == 'R0'")
    widget.get_by_role("button", name="What next?").click()
    _until(page, "table.asking")
    _keys(page, widget, "ArrowRight")
    _until(page, "bool(table.question)")
    before = page.python("table.step")
    answer = page.python("int(table._decision.answer.split(':')[1])")
    start = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert start.startswith("Physical block")
    at = int(start.split()[2].rstrip(":"))
    for _press in range(abs(answer - at)):
        page.keyboard.press("ArrowRight" if answer > at else "ArrowLeft")
    page.keyboard.press("Enter")
    _until(page, "table.feedback.get('right') is True")
    assert page.python("table.step") == before + 1
    assert "goes to slot" in widget.locator(".sl-verdict").inner_text()
    assert _shown_table(widget) == page.python("paged.state_at(table.step, 'computed').requests[0].block_table")

    widget.get_by_role("button", name="Next decision").click()
    _until(page, "bool(table.question)")
    page.wait_for_timeout(300)
    wrong = page.python("next(b for b in range(14) if table._decision.answer != f'block:{b}')")
    area = widget.locator(".sl-area").bounding_box()
    grid = page.python("next(m for m in table.frame['marks'] if m['shape'] == 'grid')")
    row, column = divmod(wrong, grid["columns"])
    x = area["x"] + 8 + (column + 0.4) * grid["step"][0]
    y = area["y"] + 7 + (row + 0.5) * grid["step"][1]
    page.mouse.click(x, y)
    _until(page, "table.feedback.get('right') is False")
    assert "Not here." in widget.locator(".sl-verdict").inner_text()
    assert "1 of 2 right" in widget.locator(".sl-ask").inner_text()


def test_the_memory_map_asks_who_is_admitted(page):
    widget = _widget(page, 1)
    widget.get_by_role("button", name="Next decision").click()
    _until(page, "bool(map_.question)")
    choice = page.python("dict(map_.question['choices'])[map_._decision.answer]")
    widget.get_by_role("button", name=choice).click()
    _until(page, "map_.feedback.get('right') is True")
    page.wait_for_timeout(300)
    counts = page.python("map_.counts[1]")
    numbers = widget.locator("svg text.sl-t-used").all_text_contents()
    assert f"{counts['used']:,}" in numbers


def test_the_calculator_follows_its_sliders(page):
    widget = _widget(page, 2)
    slider = widget.get_by_role("slider", name="Batch (requests)")
    slider.focus()
    for size in (6, 8, 12):
        page.keyboard.press("ArrowRight")
        _until(page, f"calculator.batch_size == {size}")
    widget.get_by_role("combobox", name="GPU").select_option("L4")
    _until(page, "calculator.gpu == 'L4'")
    page.wait_for_timeout(300)
    shown = widget.locator("svg text").all_text_contents()
    assert f"{page.python('calculator.load.capacity'):,}" in shown
    widget.get_by_role("button", name="What next?").click()
    _until(page, "bool(calculator.question)")
    widget.locator(".sl-choice").first.click()
    _until(page, "'text' in calculator.feedback")
    assert page.python("calculator.batch_size") == 24


def test_every_control_has_a_name(page):
    assert page.evaluate(UNNAMED) == []
    pictures = page.locator(".servelab .sl-picture > svg")
    assert all(pictures.nth(number).get_attribute("aria-label") for number in range(3))


@pytest.mark.parametrize("width", [800, 1280])
def test_nothing_is_clipped_when_narrow(page, width):
    page.resize(width, 1600)
    page.wait_for_timeout(900)
    assert page.evaluate(CLIPPED) == []
    assert page.python("table.frame['width']") <= width


def test_the_dark_theme_changes_the_colours(page):
    fill = "() => getComputedStyle(document.querySelector('.servelab .sl-free')).fill"
    light = page.evaluate(fill)
    page.set_theme(dark=True)
    dark = page.evaluate(fill)
    page.set_theme(dark=False)
    assert light != dark
    assert page.evaluate(fill) == light


def test_the_console_stayed_clean(page):
    assert page.faults == []
