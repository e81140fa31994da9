"""A learner of their own for each test: an empty data folder, a fixed seed, and the demo chapter 99."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))

from demo_chapter import MODULES

from servelab.course import record, session
from servelab.course.display import WIDGET


@pytest.fixture(autouse=True)
def data_folder(monkeypatch, tmp_path) -> Path:
    from ipywidgets import Widget

    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("SERVELAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SERVELAB_SEED", "1")
    monkeypatch.delenv("SERVELAB_EDITION", raising=False)
    monkeypatch.setattr(record, "_records", {})
    monkeypatch.setattr(session, "_listeners", {})
    Widget.close_all()
    return tmp_path / "data"


@pytest.fixture
def solved(monkeypatch) -> None:
    monkeypatch.setenv("SERVELAB_EDITION", "solved")


@pytest.fixture
def shown() -> Callable[..., list[dict[str, Any]]]:
    """`shown(function, *arguments)`: the bundles that a call displays, one dict an output."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()

    def run(function: Callable[..., object], *arguments: Any, **named: Any) -> list[dict[str, Any]]:
        with capture_output() as captured:
            function(*arguments, **named)
        return [output.data for output in captured.outputs]

    return run


@pytest.fixture
def widget_of() -> Callable[[dict[str, Any]], Any]:
    """The live widget that a displayed bundle refers to."""
    from ipywidgets.widgets.widget import _instances

    return lambda bundle: _instances[bundle[WIDGET]["model_id"]]


@pytest.fixture
def browser_sees() -> Callable[[list[dict[str, Any]]], str]:
    """Everything that reached the front end: what was displayed, and the state of every widget alive."""
    from ipywidgets.widgets.widget import _instances

    def read(outputs: list[dict[str, Any]]) -> str:
        code = ("_esm", "_css")  # the front end itself, the same for every card
        states = [
            {name: value for name, value in widget.get_state().items() if name not in code}
            for widget in _instances.values()
        ]
        return json.dumps([outputs, states], default=str, ensure_ascii=False)

    return read
