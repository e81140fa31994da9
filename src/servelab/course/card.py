"""The card that a learner reads and answers in: a description in Python, drawn by plain JavaScript.

`view` describes what is shown now and is all that reaches the browser. Its keys: `label` (for a screen reader),
`eyebrow`, `body`, `message`, `message_tone`, `footer`, `tone`, `fields` and `buttons`; see `field` and `button`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

_STATIC = Path(__file__).parent / "static"
_LISTEN = Path(__file__).parents[1] / "widgets" / "static" / "listen.js"  # read, not imported: widgets load Plotly

Action = Callable[[str, Mapping[str, Any]], None]


class Card(anywidget.AnyWidget):
    """Shows a view; `on_action(name, values)` is called with the button's name and the fields' values."""

    _esm = "\n".join(path.read_text(encoding="utf-8") for path in (_LISTEN, _STATIC / "card.js"))
    _css = _STATIC / "card.css"
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, view: Mapping[str, Any] | None = None, on_action: Action | None = None) -> None:
        super().__init__(view=dict(view or {}))
        self.on_action = on_action
        self.on_msg(self._receive)

    def _receive(self, widget: object, content: Mapping[str, Any], buffers: object) -> None:
        values = content.get("values")
        self.act(str(content.get("action", "")), **(values if isinstance(values, dict) else {}))

    def act(self, action: str, **values: Any) -> None:
        """Do what a click on the button named `action` does."""
        known = {button["name"] for button in self.view.get("buttons", ())}
        if self.on_action is not None and action in known:
            self.on_action(action, values)


def button(name: str, label: str, primary: bool = False) -> dict[str, Any]:
    """Describe a button; Enter in a number field presses the primary one."""
    return {"name": name, "label": label, "primary": primary}


def field(name: str, kind: str, label: str, **more: Any) -> dict[str, Any]:
    """Describe a field by kind: "number" (`value`, `unit`), "text" (`value`, `rows`), "choice", "marks" (`options`)."""
    return {"name": name, "kind": kind, "label": label, **more}


def options(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Describe the options of a field from (key, HTML) pairs."""
    return [{"key": key, "html": html} for key, html in pairs]
