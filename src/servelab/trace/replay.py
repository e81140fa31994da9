"""Replay a trace: from events to block tables, queues and token counts at any moment of any step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from servelab.trace.event import (
    Admit,
    Allocate,
    Arrive,
    Cache,
    Copy,
    Emit,
    Event,
    Evict,
    Finish,
    Fork,
    Free,
    Hit,
    Preempt,
    Release,
    Reserve,
    Schedule,
    Trim,
    Verify,
)

if TYPE_CHECKING:
    from servelab.trace.record import Trace

MOMENTS = ("scheduled", "computed", "end")
CHECKPOINT_STEPS = 64


@dataclass(slots=True)
class RequestState:
    """Where one request stands. `status` is "unseen", "waiting", "running" or "finished".

    num_tokens: prompt plus output tokens known so far; num_computed_tokens: tokens whose K and V are stored;
    num_scheduled_tokens: those of this step, of a draft all until it is verified and then the accepted ones;
    num_cached_tokens: those that the prefix cache had when the request was last admitted.
    block_table: physical blocks in logical order (paged); reservation: ``(start, num_slots)`` (contiguous).
    parent: the request that it was forked from.
    """

    status: str = "unseen"
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    reservation: tuple[int, int] | None = None
    parent: int | None = None

    def copy(self) -> RequestState:
        return replace(self, block_table=list(self.block_table))


@dataclass(slots=True)
class State:
    """All requests at one moment, and both queues as indices into ``Trace.requests``, in their order.

    Of a paged pool also: free: the blocks that nobody owns, in the order in which the pool hands them out;
    reference_counts: how many owners each of the others has; findable: the blocks that the prefix cache can find by
    their tokens, with an owner or without, and ``(request, logical index)`` of the tokens in each.
    """

    requests: list[RequestState]
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    free: OrderedDict[int, None] = field(default_factory=OrderedDict)
    reference_counts: dict[int, int] = field(default_factory=dict)
    findable: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def cached(self) -> set[int]:
        """Blocks that nobody owns and whose content is kept: a new request with the same prefix can take them over."""
        return {block for block in self.findable if block in self.free}

    def copy(self) -> State:
        return State(
            requests=[request.copy() for request in self.requests],
            waiting=list(self.waiting),
            running=list(self.running),
            free=self.free.copy(),
            reference_counts=dict(self.reference_counts),
            findable=dict(self.findable),
        )

    def block_owners(self) -> dict[int, list[tuple[int, int]]]:
        """Physical block -> its owners as ``(request, logical index)``."""
        owners: dict[int, list[tuple[int, int]]] = {}
        for request, state in enumerate(self.requests):
            for index, block in enumerate(state.block_table):
                owners.setdefault(block, []).append((request, index))
        return owners


def check_moment(moment: str) -> None:
    """Raise ValueError when there is no such moment."""
    if moment not in MOMENTS:
        raise ValueError(f"expected a moment in {MOMENTS}, got {moment!r}")


def cut(events: Sequence[Event], moment: str) -> int:
    """How many of a step's events have happened at `moment`.

    Requests that were aborted leave before the step begins, all others after their rows were computed.
    """
    for position, event in enumerate(events):
        if moment == "scheduled" and isinstance(event, Schedule):
            return position
        if moment != "end" and isinstance(event, Finish) and event.reason != "abort":
            return position
    return len(events)


class Replay:
    """Answers `state_at` by replaying from the nearest checkpoint, so that a slider moves at once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.checkpoints: list[State] = []

    def state_at(self, step: int, moment: str) -> State:
        """The state at one moment of one step: a copy of its own."""
        check_moment(moment)
        self._check_step(step)
        state = self._before(step)
        self._begin(state, self.trace.steps[step].events, moment)
        return state

    def state_before(self, step: int, event: int) -> State:
        """The state just before event number `event` of one step: a copy of its own."""
        self._check_step(step)
        events = self.trace.steps[step].events
        if not 0 <= event <= len(events):
            raise ValueError(f"expected an event in 0..{len(events)} of step {step}, got {event}")
        state = self._before(step)
        for earlier in events[:event]:
            self._apply(state, earlier)
        return state

    def states(self, moment: str) -> Iterator[State]:
        """The state at `moment` of every step in turn: one object that changes, for counting over a whole trace."""
        check_moment(moment)
        state = self._start()
        for step in self.trace.steps:
            position = self._begin(state, step.events, moment)
            yield state
            for event in step.events[position:]:
                self._apply(state, event)

    def _check_step(self, step: int) -> None:
        if not hasattr(step, "__index__") or not 0 <= step < len(self.trace.steps):
            raise ValueError(f"expected a step in 0..{len(self.trace.steps) - 1}, got {step!r}")

    def _start(self) -> State:
        """Nobody has come yet, and the whole pool is free."""
        blocks = range(self.trace.num_blocks) if self.trace.kv_cache == "paged" else ()
        return State([RequestState() for _ in self.trace.requests], free=OrderedDict.fromkeys(blocks))

    def _before(self, step: int) -> State:
        """A fresh copy of the state before `step`."""
        if not self.checkpoints:
            self.checkpoints.append(self._start())
        number = min(step // CHECKPOINT_STEPS, len(self.checkpoints) - 1)
        state = self.checkpoints[number].copy()
        self._grow(state)
        for position in range(number * CHECKPOINT_STEPS, step):
            for event in self.trace.steps[position].events:
                self._apply(state, event)
            if (position + 1) % CHECKPOINT_STEPS == 0 and len(self.checkpoints) == (position + 1) // CHECKPOINT_STEPS:
                self.checkpoints.append(state.copy())
        return state

    def _begin(self, state: State, events: Sequence[Event], moment: str) -> int:
        """Bring the state before a step to `moment` of it; return how many of the step's events that takes."""
        for request in state.requests:
            request.num_scheduled_tokens = 0
        position = cut(events, moment)
        for event in events[:position]:
            self._apply(state, event)
        if moment == "scheduled" and position < len(events):
            match events[position]:
                case Schedule(rows):
                    for row_request, num_tokens in rows:
                        state.requests[row_request].num_scheduled_tokens = num_tokens
        return position

    def _grow(self, state: State) -> None:
        """A live trace may have gained requests since the checkpoint was taken."""
        state.requests.extend(RequestState() for _ in range(len(self.trace.requests) - len(state.requests)))

    def _apply(self, state: State, event: Event) -> None:
        requests = state.requests
        match event:
            case Arrive(request):
                requests[request].status = "waiting"
                requests[request].num_tokens = self.trace.requests[request].num_prompt_tokens
                state.waiting.append(request)
            case Admit(request):
                requests[request].status = "running"
                requests[request].num_cached_tokens = 0
                state.waiting.remove(request)
                state.running.append(request)
            case Hit(request, index, block):
                if block not in state.findable:
                    raise ValueError(f"expected a hit on a block of the prefix cache, got block {block}")
                append_block(state, request, index, block)
                add_owner(state, block)
                requests[request].num_computed_tokens += self.trace.block_size
                requests[request].num_cached_tokens += self.trace.block_size
            case Evict(block):
                del state.findable[block]
            case Allocate(request, index, block):
                append_block(state, request, index, block)
                check_free(state, block)
                add_owner(state, block)
            case Copy(request, index, source, block):
                check_free(state, block)
                if requests[request].block_table[index] != source:
                    raise ValueError(f"expected block {source} as entry {index} of request {request}'s table")
                requests[request].block_table[index] = block
                drop_owner(state, source)
                add_owner(state, block)
            case Free(request, block):
                requests[request].block_table.remove(block)
                drop_owner(state, block)
            case Trim(request, block):
                if requests[request].block_table[-1:] != [block]:
                    raise ValueError(f"expected the last block of request {request}'s table, got block {block}")
                requests[request].block_table.pop()
                drop_owner(state, block)
                if block in state.free:
                    state.free.move_to_end(block, last=False)
            case Reserve(request, start, num_slots):
                requests[request].reservation = (start, num_slots)
            case Release(request, _, _):
                requests[request].reservation = None
            case Preempt(request, _):
                requests[request].status = "waiting"
                requests[request].num_computed_tokens = 0
                state.running.remove(request)
                state.waiting.insert(0, request)
            case Schedule(rows):
                for request, num_tokens in rows:
                    requests[request].num_scheduled_tokens = num_tokens
                    requests[request].num_computed_tokens += num_tokens
            case Verify(request, token_ids, _, _, num_accepted):
                requests[request].num_scheduled_tokens -= len(token_ids) - num_accepted
                requests[request].num_computed_tokens -= len(token_ids) - num_accepted
            case Fork(request, parent):
                requests[request] = replace(requests[parent].copy(), parent=parent, num_scheduled_tokens=0)
                for block in requests[request].block_table:
                    add_owner(state, block)
                group = [
                    place for place, other in enumerate(state.running) if parent in (other, requests[other].parent)
                ]
                state.running.insert(group[-1] + 1, request)
            case Emit(rows):
                for request, num_tokens in rows:
                    requests[request].num_tokens += num_tokens
            case Cache(request, index, block):
                state.findable[block] = (request, index)
            case Finish(request, _):
                requests[request].status = "finished"
                for queue in (state.waiting, state.running):
                    if request in queue:
                        queue.remove(request)
            case _:
                pass


def append_block(state: State, request: int, index: int, block: int) -> None:
    """`block` becomes entry `index` of the request's table. Raises ValueError when that is not the next entry."""
    table = state.requests[request].block_table
    if index != len(table):
        raise ValueError(f"expected entry {len(table)} of request {request}'s table, got entry {index}")
    table.append(block)


def check_free(state: State, block: int) -> None:
    """Raise ValueError when the pool cannot hand `block` out."""
    if block not in state.free or block in state.findable:
        raise ValueError(f"expected a free block that was evicted or never cached, got block {block}")


def add_owner(state: State, block: int) -> None:
    state.free.pop(block, None)
    state.reference_counts[block] = state.reference_counts.get(block, 0) + 1


def drop_owner(state: State, block: int) -> None:
    """One owner fewer; without owners the block joins the end of the free queue."""
    state.reference_counts[block] -= 1
    if state.reference_counts[block] == 0:
        del state.reference_counts[block]
        state.free[block] = None
