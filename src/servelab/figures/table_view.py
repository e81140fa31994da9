"""One request at one moment, as the page table shows it: read from the trace, without any geometry."""

from dataclasses import dataclass, field

from servelab.figures.frame import request_label, token_label
from servelab.trace import Allocate, Copy, Evict, Fork, Hit, RequestState, State, Trace


def free_blocks(trace: Trace, step: int, moment: str = "computed") -> list[int]:
    """The blocks of a paged pool that nobody owns, in the order in which it hands them out: free for longest first.

    `step` -1 is the empty pool before the first step.
    """
    return list(range(trace.num_blocks)) if step < 0 else list(trace.state_at(step, moment).free)


@dataclass(slots=True)
class TableView:
    """What the picture is about, read from the trace once.

    number: the request's index in the trace. owners: block -> its owners as (request, logical index). cached: blocks
    without an owner whose content is kept. new_blocks, hits, copies: what the request got in this step: fresh blocks
    (a copy is one), blocks that the prefix cache had, and writes that went to a copy. forgotten: the new blocks that
    the prefix cache could find until then.
    """

    trace: Trace
    step: int
    moment: str
    number: int
    state: State
    own: RequestState
    texts: list[str]
    owners: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    cached: set[int] = field(default_factory=set)
    new_blocks: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace, step: int, request: int, moment: str) -> "TableView":
        state = trace.state_at(step, moment)
        view = cls(trace, step, moment, request, state, state.requests[request], trace.requests[request].token_texts)
        view.owners = state.block_owners()
        view.free, view.cached = list(state.free), state.cached
        own = [event for event in trace.steps[step].events if getattr(event, "request", None) == request]
        if view.own.block_table:
            view.hits = [event.block for event in own if isinstance(event, Hit)]
            view.copies = [event for event in own if isinstance(event, Copy)]
            fresh = [event.block for event in own if isinstance(event, Allocate | Copy)]
            view.new_blocks = [block for block in fresh if block in view.own.block_table]
            evicted = {event.block for event in trace.steps[step].events if isinstance(event, Evict)}
            view.forgotten = [block for block in view.new_blocks if block in evicted]
        return view

    @property
    def request_id(self) -> str:
        return self.trace.requests[self.number].request_id

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
        return self.trace.requests[self.number].num_prompt_tokens

    @property
    def fresh(self) -> range:
        """Positions that are written in this step (done at "computed", planned at "scheduled")."""
        count = self.own.num_scheduled_tokens if self.table else 0
        start = self.stored if self.moment == "scheduled" else self.stored - count
        return range(start, start + count)

    @property
    def parent(self) -> str:
        """The request whose table this one began with in this step; empty where it did not."""
        for event in self.trace.steps[self.step].events:
            if isinstance(event, Fork) and event.request == self.number and self.moment != "scheduled":
                return request_label(self.trace.requests[event.parent].request_id)
        return ""

    def is_shared(self, block: int) -> bool:
        """Whether several tables name `block`."""
        return len(self.owners.get(block, ())) > 1

    def owner_names(self, block: int, *, others: bool = False) -> str:
        """Who owns `block`, the chosen request first (or left out)."""
        numbers = [request for request, _index in self.owners.get(block, ())]
        numbers.sort(key=lambda request: request != self.number)
        shown = [request for request in numbers if not (others and request == self.number)]
        return ", ".join(request_label(self.trace.requests[request].request_id) for request in shown)

    def num_filled(self, block: int) -> int:
        """How many slots of an owned block hold a token."""
        size = self.trace.block_size
        stored = (
            self.state.requests[number].num_computed_tokens - index * size for number, index in self.owners[block]
        )
        return min(size, max(0, *stored))

    def texts_in(self, block: int) -> list[str]:
        """The tokens that a block with an owner holds, or that a cached one still holds."""
        owners = self.owners.get(block)
        request, index = owners[0] if owners else self.state.findable[block]
        size = self.trace.block_size
        return self.trace.requests[request].token_texts[index * size : (index + 1) * size]

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
