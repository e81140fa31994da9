"""`MemoryMapWidget`: every slot of the pool by what it is good for, two runs side by side."""

from collections.abc import Sequence
from typing import Any

from servelab.figures import Frame, memory_map_frame
from servelab.trace import Finish, Trace
from servelab.translation import _
from servelab.widgets.decision import Decision, admission_decision, admission_steps
from servelab.widgets.player import Player, check_trace


class MemoryMapWidget(Player):
    """Replays one trace, or two of the same load side by side, for example contiguous beside paged.

    "What next?" asks whether the request that is first in line is admitted or waits.

    labels: names of the pools. step: where to start. Raises ValueError for a trace without steps.
    """

    def __init__(
        self,
        trace: Trace,
        other_trace: Trace | None = None,
        *,
        labels: Sequence[str] = (),
        step: int = 0,
        **values: Any,
    ) -> None:
        check_trace(trace)
        if other_trace is not None:
            check_trace(other_trace)
        if not isinstance(labels, (list, tuple)):
            raise ValueError(f"expected labels as a list of names, got {labels!r}")
        self.traces = [trace] if other_trace is None else [trace, other_trace]
        if not all(each.steps for each in self.traces):
            raise ValueError("expected traces with at least one step, got an empty one")
        first = memory_map_frame(trace, step, other_trace, labels=labels)
        self.labels = [str(pool["name"]) for pool in first.data["pools"]]
        self._admissions = admission_steps(self.traces)
        super().__init__(title=_("Memory map"), step=step, **values)

    @property
    def counts(self) -> list[dict[str, int]]:
        """For each pool, the slots of each kind that are shown."""
        return [dict(pool["counts"]) for pool in self.frame["data"]["pools"]]

    def make_frame(self, step: int, moment: str, width: int) -> Frame:
        other = self.traces[1] if len(self.traces) == 2 else None
        return memory_map_frame(self.traces[0], step, other, moment, labels=self.labels, width=width)

    def make_ticks(self) -> list[tuple[int, str]]:
        ticks = []
        for step in range(max(len(trace.steps) for trace in self.traces)):
            ticks.append((step, "computed"))
            records = [trace.steps[step] for trace in self.traces if step < len(trace.steps)]
            if any(isinstance(event, Finish) for record in records for event in record.events):
                ticks.append((step, "end"))
        return ticks

    def decision_steps(self) -> Sequence[int]:
        return self._admissions

    def make_decision(self, step: int) -> Decision | None:
        return admission_decision(self.traces, self.labels, step)
