"""The memory map: every slot of a KV pool, coloured by what it is good for; two runs side by side on the same load."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from servelab.figures.frame import Frame, fit, frame_figure, rects_path, request_label, text_width, token_label
from servelab.trace import Admit, Allocate, Free, Release, Slot, Trace, Wait, occupancy
from servelab.translation import _

MARGIN, GUTTER = 16, 28
MAP_HEIGHT = 300
STACK_BELOW = 720
KINDS = ("used", "reserved", "internal", "cached", "external", "free")


def memory_map_frame(
    trace: Trace,
    step: int,
    other: Trace | None = None,
    moment: str = "computed",
    *,
    labels: Sequence[str] = (),
    width: int = 900,
) -> Frame:
    """Draw the pool of `trace`, and of `other` beside it, at one moment of one step.

    A run that is over stays at its last step. labels: a name for each pool (default: from the trace).
    `data` holds, for each pool, its counts of slots by kind and why its first waiting request waits.
    Raises ValueError for a step that neither run has.
    """
    traces = [trace] if other is None else [trace, other]
    num_steps = max(len(each.steps) for each in traces)
    if not 0 <= step < num_steps:
        raise ValueError(f"expected a step in 0..{num_steps - 1}, got {step}")
    names = list(labels) or [_default_label(each) for each in traces]
    if len(names) != len(traces):
        raise ValueError(f"expected {len(traces)} labels, got {len(names)}: {names}")
    frame = Frame("memory_map", width)
    stacked = len(traces) == 1 or width < STACK_BELOW
    room = width - 2 * MARGIN if stacked else (width - 2 * MARGIN - GUTTER) / 2
    layout = _Layout.of(traces, room)
    y, panes = float(MARGIN), []
    for number, (each, name) in enumerate(zip(traces, names, strict=True)):
        x = MARGIN if stacked else MARGIN + number * (room + GUTTER)
        pane = _Pane(each, min(step, len(each.steps) - 1), moment, name, step >= len(each.steps))
        bottom = _draw_pane(frame, pane, layout, x, y, room)
        panes.append(pane)
        frame.height = max(frame.height, int(bottom + 6))
        if stacked:
            y = bottom + 26
    frame.legend = [
        ("used", _("used: holds a token")),
        ("reserved", _("reserved: will be used later")),
        ("internal", _("internal waste: owned, never used")),
        ("external", _("external waste: free, but in holes too small")),
        ("free", _("free")),
    ]
    if any(pane.counts["cached"] for pane in panes):
        frame.legend.insert(3, ("cached", _("cached: free, and a prompt that begins alike can take it over")))
    frame.caption = _("Step {step}.").format(step=step + 1) + " " + " ".join(pane.story() for pane in panes)
    frame.sentence = (
        _("Paging hands out small blocks as tokens arrive, so nothing is reserved ahead and no hole is too small.")
        if other is not None
        else _("Memory that a request owns and does not use is lost to every other request.")
    )
    frame.alt = " ".join(pane.alt() for pane in panes)
    frame.data = {"step": step, "moment": moment, "pools": [pane.data() for pane in panes]}
    return frame


def memory_map_figure(
    trace: Trace,
    step: int,
    other: Trace | None = None,
    moment: str = "computed",
    *,
    labels: Sequence[str] = (),
    width: int = 900,
) -> go.Figure:
    """The same picture as a Plotly figure."""
    return frame_figure(memory_map_frame(trace, step, other, moment, labels=labels, width=width))


class _Pane:
    """One pool at one moment."""

    def __init__(self, trace: Trace, step: int, moment: str, name: str, over: bool) -> None:
        self.trace, self.step, self.name, self.over = trace, step, name, over
        self.moment = "end" if over else moment
        self.slots = occupancy(trace, step, self.moment)
        self.state = trace.state_at(step, self.moment)
        self.counts = {kind: sum(slot.kind == kind for slot in self.slots) for kind in KINDS}
        refusals = [event for event in trace.steps[step].events if isinstance(event, Wait) and not over]
        self.wait = refusals[0] if refusals else None

    def data(self) -> dict[str, object]:
        return {
            "name": self.name,
            "counts": self.counts,
            "running": [self.trace.requests[index].request_id for index in self.state.running],
            "waiting": [self.trace.requests[index].request_id for index in self.state.waiting],
            "refused": self.wait.to_json() if self.wait else None,
        }

    def queue(self) -> str:
        return _("{running} running, {waiting} waiting").format(
            running=len(self.state.running), waiting=len(self.state.waiting)
        )

    def refusal(self) -> str:
        """Why the first waiting request waits, from the trace; empty when none was refused for memory."""
        if self.wait is None or self.wait.reason != "no_memory":
            return ""
        values = {
            "request": request_label(self.trace.requests[self.wait.request].request_id),
            "needed": self.wait.needed,
            "free": self.wait.free,
            "largest": self.wait.largest,
        }
        if self.trace.kv_cache == "paged":
            return _("{request} waits: it needs {needed} blocks, {free} are free.").format(**values)
        message = _("{request} waits: needs {needed} slots in a row; {free} free, longest run {largest}.")
        return message.format(**values)

    def story(self) -> str:
        """What happened in this step, in a sentence for each change."""
        if self.over:
            return _("{name}: the run is over.").format(name=self.name)
        events = self.trace.steps[self.step].events
        ids = [request_label(record.request_id) for record in self.trace.requests]
        admitted = [ids[event.request] for event in events if isinstance(event, Admit)]
        left = list(dict.fromkeys(ids[event.request] for event in events if isinstance(event, Free | Release)))
        parts = []
        if admitted:
            parts.append(_("{requests} admitted").format(requests=_names(admitted)))
        grown = sum(isinstance(event, Allocate) for event in events)
        if grown:
            parts.append(_("blocks handed out: {count}").format(count=grown))
        if left and self.moment == "end":
            parts.append(_("{requests} gave memory back").format(requests=_names(left)))
        if refusal := self.refusal():
            parts.append(refusal.rstrip("."))
        return self.name + ": " + ("; ".join(parts) if parts else _("nothing changes hands")) + "."

    def alt(self) -> str:
        message = _(
            "{name}: of {total} slots {used} are used, {reserved} reserved, {internal} internal waste, "
            "{external} external waste, {free} free; {queue}."
        )
        if self.counts["cached"]:
            message = _(
                "{name}: of {total} slots {used} are used, {reserved} reserved, {internal} internal waste, "
                "{cached} cached, {external} external waste, {free} free; {queue}."
            )
        return message.format(name=self.name, total=len(self.slots), queue=self.queue(), **self.counts)


@dataclass(slots=True)
class _Layout:
    """The same scale for every pool, so that areas can be compared."""

    per_row: int
    slot: float
    row: float

    @property
    def is_large(self) -> bool:
        """Whether a slot has room for its token's text."""
        return self.slot >= 26

    @classmethod
    def of(cls, traces: Sequence[Trace], room: float) -> "_Layout":
        num_slots = max(trace.num_slots for trace in traces)
        unit = max(trace.block_size for trace in traces)
        large = [count for count in range(unit, num_slots + unit, unit) if room / count >= 30]
        if large and -(-num_slots // large[-1]) * 34 <= MAP_HEIGHT:
            return cls(large[-1], min(46.0, room / large[-1]), 34.0)
        per_row = unit
        while True:
            slot = min(25.0, room / per_row)
            row = max(7.0, min(24.0, slot * unit * 0.75))
            if -(-num_slots // per_row) * row <= MAP_HEIGHT or slot * unit < 6:
                return cls(per_row, slot, row)
            per_row += unit


def _draw_pane(frame: Frame, pane: _Pane, layout: _Layout, x: float, y: float, width: float) -> float:
    frame.text(x, y, pane.name, size=15, bold=True)
    frame.text(x + width, y, pane.queue(), "muted", align="right")
    y = _draw_counts(frame, pane, x, y + 16, width)
    gap = 2.0 if layout.is_large else 1.0 if layout.slot >= 6 else 0.0
    boxes: dict[str, list[tuple[float, float, float, float]]] = {kind: [] for kind in KINDS}
    for start, stop in _runs(pane, layout):
        row, column = divmod(start, layout.per_row)
        lead = 4.0 if layout.is_large and pane.trace.kv_cache == "paged" else 1.0
        lead = lead if column and _is_edge(pane, start) else 0.0
        box = (
            x + column * layout.slot + lead,
            y + row * layout.row,
            (stop - start) * layout.slot - gap - lead,
            layout.row - (4.0 if layout.is_large else 1.0),
        )
        boxes[pane.slots[start].kind].append(box)
        if layout.is_large:
            _draw_token(frame, pane, start, box)
    labels, frame.marks = frame.marks, []
    for kind, rects in boxes.items():
        frame.path(rects_path(rects), kind)
    frame.marks = _behind(labels, frame.marks)
    if not layout.is_large:
        _draw_names(frame, pane, layout, x, y)
    rows = -(-len(pane.slots) // layout.per_row)
    bottom = y + rows * layout.row
    if refusal := pane.refusal():
        bottom += 14
        frame.text(x, bottom, fit(refusal, width, 13), bold=True)
        bottom += 6
    return bottom


def _behind(labels: list[dict[str, object]], cells: list[dict[str, object]]) -> list[dict[str, object]]:
    """Cells first, so that the text stands on them."""
    return cells + labels


def _draw_counts(frame: Frame, pane: _Pane, x: float, y: float, width: float) -> float:
    """One bar of the whole pool: how many slots of each kind."""
    at = x
    for kind in KINDS:
        count = pane.counts[kind]
        if count:
            w = width * count / len(pane.slots)
            frame.rect(at, y, max(w - 1, 0.5), 20, kind, f"{count:,}", size=12, title=f"{kind}: {count:,}")
            at += w
    return y + 30


def _runs(pane: _Pane, layout: _Layout) -> list[tuple[int, int]]:
    """Neighbouring slots that are drawn as one box: same kind and owner, same row, same block. Single where large."""
    single = layout.is_large
    runs, start = [], 0
    slots = pane.slots
    for end in range(1, len(slots) + 1):
        if (
            end == len(slots)
            or single
            or end % layout.per_row == 0
            or _is_edge(pane, end)
            or slots[end].kind != slots[start].kind
        ):
            runs.append((start, end))
            start = end
    return runs


def _is_edge(pane: _Pane, slot: int) -> bool:
    """Whether a new block (paged) or another owner (contiguous) begins at `slot`."""
    if pane.trace.kv_cache == "paged":
        return slot % pane.trace.block_size == 0
    return slot > 0 and pane.slots[slot].request != pane.slots[slot - 1].request


def _draw_token(frame: Frame, pane: _Pane, position: int, box: tuple[float, float, float, float]) -> None:
    """The token's own text where a slot has room for it."""
    slot: Slot = pane.slots[position]
    if slot.request is None or slot.position is None:
        return
    record = pane.trace.requests[slot.request]
    text = record.token_texts[slot.position] if slot.position < len(record.token_texts) else ""
    text = token_label(text) if slot.kind in ("used", "cached") else request_label(record.request_id)
    x, y, w, h = box
    if shown := fit(text, w - 3, 12):
        frame.text(x + w / 2, y + h / 2, shown, slot.kind, size=12, align="center")


def _draw_names(frame: Frame, pane: _Pane, layout: _Layout, x: float, y: float) -> None:
    """The owner's name on each reservation of a contiguous pool that has room for it."""
    if pane.trace.kv_cache == "paged" or layout.row < 14:
        return
    for request, state in enumerate(pane.state.requests):
        if state.reservation is None:
            continue
        start, length = state.reservation
        row, column = divmod(start, layout.per_row)
        room = min(length, layout.per_row - column) * layout.slot
        name = request_label(pane.trace.requests[request].request_id)
        if text_width(name, 12) + 8 <= room:
            frame.text(x + column * layout.slot + 5, y + (row + 0.5) * layout.row - 1, name, "used", size=12, bold=True)


def _names(ids: Sequence[str]) -> str:
    return ", ".join(ids[:4]) + (" …" if len(ids) > 4 else "")


def _default_label(trace: Trace) -> str:
    if trace.kv_cache == "paged":
        return _("Paged, blocks of {size}").format(size=trace.block_size)
    return _("Contiguous")
