"""`PageTableWidget`: one request's logical blocks, its block table and its physical blocks, step by step."""

from collections.abc import Sequence
from typing import Any

from servelab.figures import Frame, page_table_frame
from servelab.trace import Finish, Schedule, Trace
from servelab.translation import _
from servelab.widgets.decision import Decision
from servelab.widgets.placement import block_decision, block_steps
from servelab.widgets.player import Player, check_trace


class PageTableWidget(Player):
    """Replays a paged trace for one request at a time.

    Each step in which the request stores tokens shows two moments: its blocks are handed out, then keys and values
    are written. "What next?" asks which physical block takes the next token, and which blocks a new request takes over
    from the prefix cache.

    request: id or index (default: the first). step: where to start (default: the first step that the request runs in).
    Raises ValueError for a trace that is not paged or has no steps.
    """

    def __init__(
        self, trace: Trace, request: str | int | None = None, *, step: int | None = None, **values: Any
    ) -> None:
        check_trace(trace)
        if trace.kv_cache != "paged":
            raise ValueError(f"expected a trace of a paged cache, got kv_cache={trace.kv_cache!r}")
        if not trace.steps or not trace.requests:
            raise ValueError("expected a trace with at least one step and one request, got an empty one")
        self.trace = trace
        index = trace.index_of(request) if isinstance(request, str) else request or 0
        if type(index) is not int or not 0 <= index < len(trace.requests):
            raise ValueError(f"expected a request id or an index in 0..{len(trace.requests) - 1}, got {request!r}")
        start = step if step is not None else _first_step(trace, index)
        super().__init__(
            title=_("Page table"),
            requests=[record.request_id for record in trace.requests],
            request=trace.requests[index].request_id,
            step=start,
            **values,
        )

    @property
    def block_table(self) -> list[int]:
        """The block table shown: physical blocks in logical order."""
        return list(self.frame["data"]["block_table"])

    def make_frame(self, step: int, moment: str, width: int) -> Frame:
        return page_table_frame(self.trace, step, self.request, moment, width=width)

    def make_ticks(self) -> list[tuple[int, str]]:
        index = self.trace.index_of(self.request)
        ticks = []
        for step, record in enumerate(self.trace.steps):
            rows = [row for event in record.events if isinstance(event, Schedule) for row in event.rows]
            if any(request == index for request, _count in rows):
                ticks.append((step, "scheduled"))
            ticks.append((step, "computed"))
            if any(isinstance(event, Finish) for event in record.events):
                ticks.append((step, "end"))
        return ticks

    def decision_steps(self) -> Sequence[int]:
        return block_steps(self.trace, self.trace.index_of(self.request))

    def make_decision(self, step: int) -> Decision | None:
        return block_decision(self.trace, self.trace.index_of(self.request), step)


def _first_step(trace: Trace, request: int) -> int:
    for step, record in enumerate(trace.steps):
        for event in record.events:
            if isinstance(event, Schedule) and any(row[0] == request for row in event.rows):
                return step
    return 0
