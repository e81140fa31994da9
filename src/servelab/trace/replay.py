"""Replay a trace: from events to block tables, queues and token counts at any moment of any step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from servelab.trace.event import (
    Admit,
    Allocate,
    Arrive,
    Emit,
    Event,
    Finish,
    Free,
    Preempt,
    Release,
    Reserve,
    Schedule,
)

if TYPE_CHECKING:
    from servelab.trace.record import Trace

MOMENTS = ("scheduled", "computed", "end")
CHECKPOINT_STEPS = 64


@dataclass(slots=True)
class RequestState:
    """Where one request stands. `status` is "unseen", "waiting", "running" or "finished".

    num_tokens: prompt plus output tokens known so far; num_computed_tokens: tokens whose K and V are stored.
    block_table: physical blocks in logical order (paged); reservation: ``(start, num_slots)`` (contiguous).
    """

    status: str = "unseen"
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    reservation: tuple[int, int] | None = None


@dataclass(slots=True)
class State:
    """All requests at one moment, and both queues as indices into ``Trace.requests``, in their order."""

    requests: list[RequestState]
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

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
        trace = self.trace
        if not hasattr(step, "__index__") or not 0 <= step < len(trace.steps):
            raise ValueError(f"expected a step in 0..{len(trace.steps) - 1}, got {step!r}")
        state = self._before(step)
        self._begin(state, trace.steps[step].events, moment)
        return state

    def states(self, moment: str) -> Iterator[State]:
        """The state at `moment` of every step in turn: one object that changes, for counting over a whole trace."""
        check_moment(moment)
        state = State([RequestState() for _ in self.trace.requests])
        for step in self.trace.steps:
            position = self._begin(state, step.events, moment)
            yield state
            for event in step.events[position:]:
                self._apply(state, event)

    def _before(self, step: int) -> State:
        """A fresh copy of the state before `step`."""
        if not self.checkpoints:
            self.checkpoints.append(State([RequestState() for _ in self.trace.requests]))
        number = min(step // CHECKPOINT_STEPS, len(self.checkpoints) - 1)
        state = copy.deepcopy(self.checkpoints[number])
        self._grow(state)
        for position in range(number * CHECKPOINT_STEPS, step):
            for event in self.trace.steps[position].events:
                self._apply(state, event)
            if (position + 1) % CHECKPOINT_STEPS == 0 and len(self.checkpoints) == (position + 1) // CHECKPOINT_STEPS:
                self.checkpoints.append(copy.deepcopy(state))
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
        match event:
            case Arrive(request):
                state.requests[request].status = "waiting"
                state.requests[request].num_tokens = self.trace.requests[request].num_prompt_tokens
                state.waiting.append(request)
            case Admit(request):
                state.requests[request].status = "running"
                state.waiting.remove(request)
                state.running.append(request)
            case Allocate(request, index, block):
                table = state.requests[request].block_table
                if index != len(table):
                    raise ValueError(f"expected entry {len(table)} of request {request}'s table, got entry {index}")
                table.append(block)
            case Free(request, block):
                state.requests[request].block_table.remove(block)
            case Reserve(request, start, num_slots):
                state.requests[request].reservation = (start, num_slots)
            case Release(request, _, _):
                state.requests[request].reservation = None
            case Preempt(request, _):
                state.requests[request].status = "waiting"
                state.requests[request].num_computed_tokens = 0
                state.running.remove(request)
                state.waiting.insert(0, request)
            case Schedule(rows):
                for request, num_tokens in rows:
                    state.requests[request].num_scheduled_tokens = num_tokens
                    state.requests[request].num_computed_tokens += num_tokens
            case Emit(rows):
                for request, num_tokens in rows:
                    state.requests[request].num_tokens += num_tokens
            case Finish(request, _):
                state.requests[request].status = "finished"
                for queue in (state.waiting, state.running):
                    if request in queue:
                        queue.remove(request)
            case _:
                pass
