"""One request at one moment, as the page table shows it: read from the trace, without any geometry."""

from dataclasses import dataclass, field

from servelab.figures.frame import request_label, token_label
from servelab.trace import Allocate, Free, RequestState, State, Trace
from servelab.trace.replay import cut


def free_blocks(trace: Trace, step: int, moment: str = "computed") -> list[int]:
    """The free blocks of a paged pool in the order in which it hands them out: free for longest first.

    `step` -1 is the empty pool before the first step.
    """
    order = dict.fromkeys(range(trace.num_blocks))
    for position, record in enumerate(trace.steps[: step + 1]):
        end = cut(record.events, moment) if position == step else len(record.events)
        for event in record.events[:end]:
            if isinstance(event, Allocate):
                order.pop(event.block, None)
            elif isinstance(event, Free):
                order[event.block] = None
    return list(order)


@dataclass(slots=True)
class TableView:
    """What the picture is about, read from the trace once."""

    trace: Trace
    step: int
    moment: str
    request_id: str
    state: State
    own: RequestState
    texts: list[str]
    owners: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    new_blocks: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace, step: int, request: int, moment: str) -> "TableView":
        state = trace.state_at(step, moment)
        record = trace.requests[request]
        view = cls(trace, step, moment, record.request_id, state, state.requests[request], record.token_texts)
        view.owners = {block: owners[0][0] for block, owners in state.block_owners().items()}
        view.free = free_blocks(trace, step, moment)
        events = trace.steps[step].events
        view.new_blocks = [
            event.block
            for event in events
            if isinstance(event, Allocate) and event.request == request and event.block in view.own.block_table
        ]
        return view

    @property
    def name(self) -> str:
        return request_label(self.request_id)

    @property
    def table(self) -> list[int]:
        return self.own.block_table

    @property
    def stored(self) -> int:
        return self.own.num_computed_tokens if self.table else 0

    @property
    def num_prompt(self) -> int:
        return self.trace.requests[self.trace.index_of(self.request_id)].num_prompt_tokens

    @property
    def fresh(self) -> range:
        """Positions that are written in this step (done at "computed", planned at "scheduled")."""
        count = self.own.num_scheduled_tokens if self.table else 0
        start = self.stored if self.moment == "scheduled" else self.stored - count
        return range(start, start + count)

    def slot(self, position: int) -> list[int]:
        """``[physical block, slot in it]`` of a token's position."""
        return [self.table[position // self.trace.block_size], position % self.trace.block_size]

    def style(self, position: int) -> str:
        if position in self.fresh:
            return "next" if self.moment == "scheduled" else "new"
        if position >= self.stored:
            return "empty"
        return "prompt" if position < self.num_prompt else "output"

    def shows_text(self, position: int) -> bool:
        return position < self.stored or position in self.fresh

    def token(self, position: int) -> str:
        text = self.texts[position] if position < len(self.texts) else ""
        return token_label(text)
