"""What each slot of the pool is good for: used, reserved, internal or external waste, or free.

These are the categories of the PagedAttention paper (Kwon et al. 2023, figure 2). A trace knows how every
request ended, so it can tell memory that will be used (reserved) from memory that never is (internal).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from servelab.costs import holes
from servelab.trace.event import Finish, Preempt, Schedule, Wait
from servelab.trace.record import Trace
from servelab.trace.replay import RequestState, State

KINDS = ("used", "reserved", "internal", "free", "external")


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of the pool.

    kind: "used" holds the K and V of a token; "reserved" will, before its owner gives it back; "internal" belongs
    to a request that never uses it (the end of its last block, or reserved beyond its final length); "free" has no
    owner; "external" is free too, but in a hole too small for the request that was refused in this step, although
    all free slots together would do.
    request, position: the owner (index into ``Trace.requests``) and which of its tokens lies here or would; None
    when nobody owns the slot.
    """

    kind: str
    request: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Waste:
    """Slot-steps of each kind, summed over the steps of a trace. Their sum is slots x steps."""

    used: int = 0
    reserved: int = 0
    internal: int = 0
    free: int = 0
    external: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def fraction(self, kind: str) -> float:
        """The share of one kind in all slot-steps, 0 to 1."""
        if kind not in KINDS:
            raise ValueError(f"expected a kind in {KINDS}, got {kind!r}")
        return int(getattr(self, kind)) / self.total if self.total else 0.0

    @property
    def used_of_owned(self) -> float:
        """The share of the memory given to requests that holds tokens, 0 to 1. 0 when nothing was given."""
        owned = self.used + self.reserved + self.internal
        return self.used / owned if owned else 0.0


def occupancy(trace: Trace, step: int, moment: str = "computed") -> list[Slot]:
    """Every slot of the pool at one moment of one step, in the order of the pool (`Trace.num_slots` of them).

    Where a request is still running when the trace ends, it is taken to use no more than it used so far.
    Raises ValueError when there is no such step or moment.
    """
    state = trace.state_at(step, moment)
    finals = _final_lengths(trace)
    free = Slot("external" if _is_scattered(trace, state, step) else "free")
    slots = [free] * trace.num_slots
    for request, request_state in enumerate(state.requests):
        final = finals.at(request, step, moment)
        for position, slot in enumerate(_owned_slots(trace, request_state)):
            kind = _kind(position, request_state.num_computed_tokens, final)
            # A slot that several requests share is used as soon as one of them uses it.
            if slots[slot].kind != "used":
                slots[slot] = Slot(kind, request, position)
    return slots


def waste(trace: Trace, moment: str = "computed") -> Waste:
    """Count the slots of each kind at `moment` of every step, and sum over the steps.

    Counts each owner's slots (`occupancy` lists slots one by one: the same numbers, for one step).
    """
    finals = _final_lengths(trace)
    total = dict.fromkeys(KINDS, 0)
    for step, state in enumerate(trace.states(moment)):
        num_free = trace.num_slots
        for request, request_state in enumerate(state.requests):
            owned = _num_owned(trace, request_state)
            if owned == 0:
                continue
            used = request_state.num_computed_tokens
            needed = min(owned, finals.at(request, step, moment))
            total["used"] += used
            total["reserved"] += needed - used
            total["internal"] += owned - needed
            num_free -= owned
        total["external" if _is_scattered(trace, state, step) else "free"] += num_free
    return Waste(**total)


def _kind(position: int, num_computed_tokens: int, final_length: int) -> str:
    if position < num_computed_tokens:
        return "used"
    return "reserved" if position < final_length else "internal"


def _num_owned(trace: Trace, state: RequestState) -> int:
    return state.reservation[1] if state.reservation else len(state.block_table) * trace.block_size


def _owned_slots(trace: Trace, state: RequestState) -> Iterator[int]:
    """The slots of one request in the order of its tokens."""
    if state.reservation:
        start, num_slots = state.reservation
        yield from range(start, start + num_slots)
    for block in state.block_table:
        yield from range(block * trace.block_size, (block + 1) * trace.block_size)


def _is_scattered(trace: Trace, state: State, step: int) -> bool:
    """Whether the request refused in this step fails at this moment only because no hole is long enough."""
    refused = [event for event in trace.steps[step].events if isinstance(event, Wait) and event.reason == "no_memory"]
    if trace.kv_cache != "contiguous" or not refused:
        return False
    taken = [request.reservation for request in state.requests if request.reservation]
    lengths = [length for _, length in holes(trace.num_slots, taken)]
    return max(lengths, default=0) < refused[0].needed <= sum(lengths)


class _FinalLengths:
    """For each request, when it gave its memory back and how many tokens it stored by then."""

    # A preempted or aborted request leaves before the step's "scheduled" moment, a finished one after "computed".
    MOMENT_ORDER: ClassVar[dict[str, int]] = {"scheduled": 1, "computed": 2, "end": 4}
    EARLY, LATE = 0, 3

    def __init__(self, num_requests: int) -> None:
        self.stored = [0] * num_requests
        self.departures: list[list[tuple[tuple[int, int], int]]] = [[] for _ in range(num_requests)]

    def depart(self, request: int, step: int, order: int) -> None:
        self.departures[request].append(((step, order), self.stored[request]))
        self.stored[request] = 0

    def at(self, request: int, step: int, moment: str) -> int:
        """How many tokens the request stores before it next gives its memory back."""
        now = (step, self.MOMENT_ORDER[moment])
        later = (length for time, length in self.departures[request] if time > now)
        return next(later, self.stored[request])


def _final_lengths(trace: Trace) -> _FinalLengths:
    lengths = _FinalLengths(len(trace.requests))
    for step, record in enumerate(trace.steps):
        for event in record.events:
            match event:
                case Schedule(rows):
                    for request, num_tokens in rows:
                        lengths.stored[request] += num_tokens
                case Preempt(request):
                    lengths.depart(request, step, lengths.EARLY)
                case Finish(request, reason):
                    lengths.depart(request, step, lengths.EARLY if reason == "abort" else lengths.LATE)
    return lengths
