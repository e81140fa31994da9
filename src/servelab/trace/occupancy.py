"""What each slot of the pool is good for: used, reserved, internal or external waste, or free.

These are the categories of the PagedAttention paper (Kwon et al. 2023, figure 2). A trace knows how every
request ended, so it can tell memory that will be used (reserved) from memory that never is (internal).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from servelab.costs import blocks_needed, holes
from servelab.trace.event import Finish, Fork, Hit, Preempt, Schedule, Trim, Verify, Wait
from servelab.trace.record import Trace
from servelab.trace.replay import RequestState, State

KINDS = ("used", "reserved", "internal", "cached", "free", "external")


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of the pool.

    kind: "used" holds the K and V of a token; "reserved" will, before its owner gives it back; "internal" belongs
    to a request that never uses it (the end of its last block, or reserved beyond its final length); "cached" has no
    owner, and the prefix cache can still find the token in it; "free" has no owner; "external" is free too, but in a
    hole too small for the request that was refused in this step, although all free slots together would do.
    Where several requests share a block, a slot is what it is to the one that uses it most.
    request, position: the owner (index into ``Trace.requests``) and which of its tokens lies here or would; of a
    cached slot, whose token it is; None of a free one.
    """

    kind: str
    request: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Waste:
    """Slot-steps of each kind, summed over the steps of a trace: slots x steps in all, as a shared slot counts once."""

    used: int = 0
    reserved: int = 0
    internal: int = 0
    free: int = 0
    external: int = 0
    cached: int = 0

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
    for block in state.cached:
        request, index = state.findable[block]
        for offset in range(trace.block_size):
            slots[block * trace.block_size + offset] = Slot("cached", request, index * trace.block_size + offset)
    for request, request_state in enumerate(state.requests):
        final = finals.at(request, step, moment)
        for position, slot in enumerate(_owned_slots(trace, request_state)):
            kind = _kind(position, request_state.num_computed_tokens, final)
            if KINDS.index(kind) < KINDS.index(slots[slot].kind):
                slots[slot] = Slot(kind, request, position)
    return slots


def waste(trace: Trace, moment: str = "computed") -> Waste:
    """Count the slots of each kind at `moment` of every step, and sum over the steps.

    Counts each owner's slots (`occupancy` lists slots one by one: the same numbers, for one step).
    """
    finals = _final_lengths(trace)
    total = dict.fromkeys(KINDS, 0)
    for step, state in enumerate(trace.states(moment)):
        used = needed = owned = 0
        for extent in _extents(trace, state, [finals.at(r, step, moment) for r in range(len(state.requests))]):
            used += extent[0]
            needed += extent[1]
            owned += extent[2]
        cached = len(state.cached) * trace.block_size
        total["used"] += used
        total["reserved"] += needed - used
        total["internal"] += owned - needed
        total["cached"] += cached
        total["external" if _is_scattered(trace, state, step) else "free"] += trace.num_slots - owned - cached
    return Waste(**total)


def _kind(position: int, num_computed_tokens: int, final_length: int) -> str:
    if position < num_computed_tokens:
        return "used"
    return "reserved" if position < final_length else "internal"


def _extents(trace: Trace, state: State, finals: list[int]) -> Iterator[tuple[int, int, int]]:
    """Slots that are used, that are used or will be, and that are owned, of one owner or one shared block at a time."""
    size = trace.block_size
    shared = {block for block, count in state.reference_counts.items() if count > 1}
    extents: dict[int, list[int]] = {}
    for request, final in zip(state.requests, finals, strict=True):
        owned = request.reservation[1] if request.reservation else len(request.block_table) * size
        used = request.num_computed_tokens if owned else 0
        needed = min(owned, final)
        elsewhere = [0, 0, 0]
        for index, block in enumerate(request.block_table if shared else ()):
            if block in shared:
                # Every owner uses the first so many slots of a block: the one that uses most says what they are.
                own = [min(max(count - index * size, 0), size) for count in (used, needed)]
                extents[block] = [max(pair) for pair in zip(own, extents.get(block, own), strict=True)]
                elsewhere = [sum(pair) for pair in zip(elsewhere, (*own, size), strict=True)]
        yield used - elsewhere[0], needed - elsewhere[1], owned - elsewhere[2]
    for used, needed in extents.values():
        yield used, needed, size


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
        self.trimmed: dict[tuple[int, int], int] = {}  # (request, step) -> slots that it still had after a `Trim`

    def depart(self, request: int, step: int, order: int) -> None:
        self.departures[request].append(((step, order), self.stored[request]))
        self.stored[request] = 0

    def at(self, request: int, step: int, moment: str) -> int:
        """How many tokens the request stores before it next gives its memory back."""
        now = (step, self.MOMENT_ORDER[moment])
        later = (length for time, length in self.departures[request] if time > now)
        final = next(later, self.stored[request])
        return min(final, self.trimmed.get((request, step), final)) if moment == "scheduled" else final


def _final_lengths(trace: Trace) -> _FinalLengths:
    lengths = _FinalLengths(len(trace.requests))
    for step, record in enumerate(trace.steps):
        for event in record.events:
            match event:
                case Schedule(rows):
                    for request, num_tokens in rows:
                        lengths.stored[request] += num_tokens
                case Hit(request):
                    lengths.stored[request] += trace.block_size
                case Verify(request, token_ids, _, _, num_accepted):
                    lengths.stored[request] -= len(token_ids) - num_accepted
                case Trim(request):
                    # It holds blocks for the tokens it knows: those that are stored, and the one to be computed next.
                    num_blocks = blocks_needed(lengths.stored[request] + 1, trace.block_size)
                    lengths.trimmed[request, step] = num_blocks * trace.block_size
                case Fork(request, parent):
                    lengths.stored[request] = lengths.stored[parent]
                case Preempt(request):
                    lengths.depart(request, step, lengths.EARLY)
                case Finish(request, reason):
                    lengths.depart(request, step, lengths.EARLY if reason == "abort" else lengths.LATE)
    return lengths
