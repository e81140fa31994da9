"""What the front end loads: one source for colours, no network."""

import re

from servelab.figures.theme import STYLES
from servelab.widgets.style import STATIC, css, script


def test_every_style_has_a_light_and_a_dark_rule():
    text = css()
    for name in STYLES:
        assert f".servelab .sl-{name}{{" in text
        assert f'body[data-jp-theme-light="false"] .servelab .sl-{name}{{' in text


def test_colours_of_marks_are_defined_once():
    fills = {style.fill[0] for style in STYLES.values()} - {"none", "#FFFFFF"}
    sheet = (STATIC / "widget.css").read_text(encoding="utf-8")
    assert not [fill for fill in fills if fill.lower() in sheet.lower()]


def test_nothing_is_fetched():
    sources = [path.read_text(encoding="utf-8") for path in STATIC.iterdir()]
    assert len(sources) == 5
    for source in sources:
        hosts = set(re.findall(r"https?://([^/\"']+)", source))
        assert hosts <= {"www.w3.org"}  # the name of SVG's namespace, not a request
        assert not re.search(r"@import|\bimport\s|fetch\(", source)


def test_a_script_exports_once():
    for name in ("player.js", "calculator.js"):
        assert script("picture.js", name).count("export default") == 1
