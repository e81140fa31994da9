"""`Player`: what every widget over a trace shares: play, pause, step, scrub, and "what next?".

All state is in traits, so that a notebook can read and set it: ``widget.step = 12``. The front end draws `frame` and
sends what the learner does; every decision is taken here.
"""

from collections.abc import Sequence
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets

from servelab.figures import Frame, frame_figure
from servelab.trace import Trace
from servelab.translation import _
from servelab.widgets.decision import Decision
from servelab.widgets.style import css, script

MIN_WIDTH, MAX_WIDTH = 520, 1240


def words() -> dict[str, str]:
    """What the front end says, in the learner's language."""
    return {
        "play": _("Play"),
        "pause": _("Pause"),
        "back": _("One step back"),
        "forward": _("One step forward"),
        "first": _("To the start"),
        "last": _("To the end"),
        "scrub": _("Moment of the run"),
        "speed": _("Speed"),
        "slow": _("slow"),
        "normal": _("normal"),
        "fast": _("fast"),
        "request": _("Request"),
        "ask": _("What next?"),
        "ask_title": _("Pause before each decision and let me choose"),
        "next": _("Next decision"),
        "skip": _("Skip"),
        "go_on": _("Go on"),
        "position": _("step {step} of {steps}"),
        "score": _("{right} of {asked} right"),
        "sentence": _("In a sentence:"),
        "keys": _("Keys: Space plays and pauses, arrows step, Home and End jump."),
        "point": _("Use the arrow keys to move between blocks and Enter to choose."),
        "moment_scheduled": _("before computing"),
        "moment_computed": _("computed"),
        "moment_end": _("finished requests leave"),
    }


def check_trace(trace: object) -> None:
    """Raise ValueError for what is no trace."""
    if not isinstance(trace, Trace):
        raise ValueError(f"expected a Trace, such as engine.trace, got {type(trace).__name__}")


class Player(anywidget.AnyWidget):
    """Replays a trace tick by tick. A tick is one moment of one step at which there is something to see."""

    _esm = script("listen.js", "picture.js", "player.js")
    _css = css()

    title = traitlets.Unicode("").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    moment = traitlets.Unicode("computed").tag(sync=True)
    num_steps = traitlets.Int(1).tag(sync=True)
    tick = traitlets.Int(0).tag(sync=True)
    num_ticks = traitlets.Int(1).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    interval_ms = traitlets.Int(900).tag(sync=True)
    request = traitlets.Unicode("").tag(sync=True)
    requests = traitlets.List(traitlets.Unicode()).tag(sync=True)
    width = traitlets.Int(900).tag(sync=True)
    frame = traitlets.Dict().tag(sync=True)
    asking = traitlets.Bool(False).tag(sync=True)
    question = traitlets.Dict().tag(sync=True)
    feedback = traitlets.Dict().tag(sync=True)
    score = traitlets.List([0, 0]).tag(sync=True)
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, **values: Any) -> None:
        super().__init__(words=words(), **values)
        self._ticks: list[tuple[int, str]] = [(0, "computed")]
        self._decision: Decision | None = None
        self._answered: set[tuple[str, int]] = set()
        self._moving = False
        self._decision_steps: list[int] = []
        self._restart()
        self.observe(self._on_tick, "tick")
        self.observe(self._on_step, ["step", "moment"])
        self.observe(self._on_request, "request")
        self.observe(self._redraw, "width")
        self.on_msg(self._received)

    def make_frame(self, step: int, moment: str, width: int) -> Frame:
        """The picture of one moment."""
        raise NotImplementedError

    def make_ticks(self) -> list[tuple[int, str]]:
        """All moments to stop at, as (step, moment) in order."""
        raise NotImplementedError

    def decision_steps(self) -> Sequence[int]:
        """Steps before which "what next?" asks."""
        raise NotImplementedError

    def make_decision(self, step: int) -> Decision | None:
        """The question about one of `decision_steps`."""
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        """What a reader of this widget can say afterwards."""
        return str(self.frame["sentence"])

    @property
    def alt(self) -> str:
        """The finding of the frame shown, for those who do not see it."""
        return str(self.frame["alt"])

    def static_figure(self, width: int = 900) -> go.Figure:
        """The frame shown now as a Plotly figure, for a notebook that is read without a kernel."""
        return frame_figure(self.make_frame(self.step, self.moment, width))

    def advance(self, by: int = 1) -> None:
        """Move by ticks; with "what next?" on, stop before a decision and ask."""
        target = min(max(self.tick + by, 0), self.num_ticks - 1)
        step = self._ticks[target][0]
        if by > 0 and (self.question or (self.asking and step > self.step and self._ask(step))):
            return
        if target == self.tick:
            self.playing = False
            return
        self.tick = target

    def next_decision(self) -> None:
        """Jump to the next decision that was not asked yet, and ask. Stays where there is none."""
        for step in self._decision_steps:
            first = self._first_tick(step)
            if first > self.tick and (self.request, step) not in self._answered:
                self.asking = True
                self.tick = first - 1
                self._ask(step)
                return
        self.feedback = {"right": True, "text": _("There is no further decision in this run.")}

    def answer(self, choice: str) -> None:
        """Answer the open question; the verdict and the trace's reason appear, and the run goes on to the result.

        Raises ValueError when nothing was asked or the choice is not offered.
        """
        decision = self._decision
        if decision is None:
            raise ValueError(f"expected an open question, got the answer {choice!r} to none")
        offered = [identity for identity, _label in decision.choices]
        if offered and choice not in offered:
            raise ValueError(f"expected one of {offered}, got {choice!r}")
        right, text = decision.verdict(choice)
        self.score = [self.score[0] + right, self.score[1] + 1]
        self._conclude(decision)
        self.feedback = {"right": right, "text": text}

    def skip(self) -> None:
        """Close the open question and show what the engine did."""
        if self._decision is not None:
            decision = self._decision
            self._conclude(decision)
            self.feedback = {"right": True, "text": decision.because}

    def _conclude(self, decision: Decision) -> None:
        self._answered.add((self.request, decision.step))
        self._decision, self.question = None, {}
        self.tick = max(self._ticks_of(decision.step), default=self.tick)

    def _ticks_of(self, step: int) -> list[int]:
        return [number for number, (at, moment) in enumerate(self._ticks) if at == step and moment != "end"]

    def _first_tick(self, step: int) -> int:
        return min(self._ticks_of(step), default=self.num_ticks)

    def _ask(self, step: int) -> bool:
        """Open the question about `step`, if there is one and it was not asked yet."""
        if (self.request, step) in self._answered or step not in self._decision_steps:
            return False
        decision = self.make_decision(step)
        if decision is None:
            return False
        with self.hold_sync():
            self.playing, self._decision, self.feedback = False, decision, {}
            self.question = {
                "prompt": decision.prompt,
                "rule": decision.rule,
                "pointing": decision.pointing,
                "choices": [list(choice) for choice in decision.choices],
            }
        return True

    def _restart(self) -> None:
        """Another request, another set of moments: keep the step where possible."""
        self._ticks = self.make_ticks() or [(0, "computed")]
        # Nothing comes before step 0, so there is no picture to ask about it on.
        self._decision_steps = [step for step in self.decision_steps() if step > 0]
        self.num_ticks = len(self._ticks)
        self.num_steps = self._ticks[-1][0] + 1
        at = [number for number, (step, _moment) in enumerate(self._ticks) if step <= self.step]
        with self.hold_sync():
            self._decision, self.question, self.feedback = None, {}, {}
            self._show(max(at, default=0))

    def _show(self, tick: int) -> None:
        self._moving = True
        self.tick = tick
        self.step, self.moment = self._ticks[tick]
        self._moving = False
        self._redraw()

    def _redraw(self, _change: Any = None) -> None:
        width = min(max(self.width, MIN_WIDTH), MAX_WIDTH)
        self.frame = self.make_frame(self.step, self.moment, width).to_json()

    def _on_tick(self, _change: Any) -> None:
        if self._moving:
            return
        with self.hold_sync():
            self._decision, self.question, self.feedback = None, {}, {}
            self._show(min(max(self.tick, 0), self.num_ticks - 1))
            if self.tick == self.num_ticks - 1:
                self.playing = False

    def _on_step(self, change: Any) -> None:
        if self._moving:
            return
        wanted = (self.step, self.moment if change["name"] == "moment" else "computed")
        known = wanted in self._ticks
        tick = self._ticks.index(wanted) if known else max(self._ticks_of(self.step), default=self.tick)
        with self.hold_sync():
            self._decision, self.question, self.feedback = None, {}, {}
            self._show(tick)

    def _on_request(self, _change: Any) -> None:
        self._restart()

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] < self._total_steps():
            raise ValueError(f"expected a step in 0..{self._total_steps() - 1}, got {proposal['value']}")
        return int(proposal["value"])

    @traitlets.validate("request")
    def _check_request(self, proposal: Any) -> str:
        if self.requests and proposal["value"] not in self.requests:
            raise ValueError(f"expected one of the requests {self.requests[:8]}, got {proposal['value']!r}")
        return str(proposal["value"])

    def _total_steps(self) -> int:
        return max(step for step, _moment in self.make_ticks()) + 1

    def _received(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        match message:
            case {"do": "advance", "by": int(by), "from": int(tick)} if tick == self.tick:
                self.advance(by)
            case {"do": "answer", "choice": str(choice)} if self._decision is not None:
                self.answer(choice)
            case {"do": "skip"}:
                self.skip()
            case {"do": "next_decision"}:
                self.next_decision()
