"""The events of a step, in the order in which the engine decides them.

    arrivals and aborts -> scheduling decisions -> Draft* -> Schedule, Traffic -> Verify* -> Fork* -> Emit -> Cache*
    -> Trim* -> who finishes, and what that frees

A request is named by its index in ``Trace.requests``. Every event is a frozen dataclass; in a file it is the
list ``[kind, field, field, ...]``. Replaying the events of a trace in order gives every block table, every
queue and every token count at every moment (`servelab.trace.replay`).
"""

from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. `kind` is its name in a file."""

    kind: ClassVar[str]

    def to_json(self) -> list[Any]:
        return [self.kind, *astuple(self)]


@dataclass(frozen=True, slots=True)
class Arrive(Event):
    """The request entered the waiting queue."""

    kind: ClassVar[str] = "arrive"
    request: int


@dataclass(frozen=True, slots=True)
class Admit(Event):
    """The request left the waiting queue and runs (for the first time, or again after a preemption)."""

    kind: ClassVar[str] = "admit"
    request: int


@dataclass(frozen=True, slots=True)
class Wait(Event):
    """The first waiting request stays in the queue in this step, and why.

    reason: "no_memory" (blocks, or slots in a row), "no_seat" (`max_num_seqs` run already), "no_budget" (the
    step's tokens are spent) or "batch_unfinished" (static batching).
    needed, free, largest: in blocks (paged) or slots (contiguous); `largest` is the most that one request could
    get: all free blocks, or the longest run of free slots. Zero where the reason is not memory.
    """

    kind: ClassVar[str] = "wait"
    request: int
    reason: str
    needed: int = 0
    free: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True)
class Hit(Event):
    """Prefix cache: `block` holds these tokens already and becomes entry `index` of the request's block table.

    Its `block_size` tokens are not computed again. Right after the request's `Admit`, before its `Allocate`.
    """

    kind: ClassVar[str] = "hit"
    request: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class Evict(Event):
    """Prefix cache: what `block` holds is forgotten, because the next event hands the block out again."""

    kind: ClassVar[str] = "evict"
    block: int


@dataclass(frozen=True, slots=True)
class Allocate(Event):
    """Physical `block` becomes entry `index` of the request's block table."""

    kind: ClassVar[str] = "allocate"
    request: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class Copy(Event):
    """Copy on write: entry `index` of the request's table was `source`, which others read too; now it is `block`."""

    kind: ClassVar[str] = "copy"
    request: int
    index: int
    source: int
    block: int


@dataclass(frozen=True, slots=True)
class Free(Event):
    """The request gives back physical `block`; the pool has it back when this was its last owner."""

    kind: ClassVar[str] = "free"
    request: int
    block: int


@dataclass(frozen=True, slots=True)
class Trim(Event):
    """Speculation: the request gives back its last block, which only rejected draft tokens needed.

    Nobody wants what the block holds: the pool hands it out next.
    """

    kind: ClassVar[str] = "trim"
    request: int
    block: int


@dataclass(frozen=True, slots=True)
class Reserve(Event):
    """Contiguous baseline: the request owns slots ``start .. start + num_slots - 1``."""

    kind: ClassVar[str] = "reserve"
    request: int
    start: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Release(Event):
    """Contiguous baseline: the request gives back its slots."""

    kind: ClassVar[str] = "release"
    request: int
    start: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Preempt(Event):
    """The request loses its place and its blocks, and returns to the head of the waiting queue.

    `reason` says for whom: "no_memory" (an older request needed a block).
    """

    kind: ClassVar[str] = "preempt"
    request: int
    reason: str = "no_memory"


@dataclass(frozen=True, slots=True)
class Draft(Event):
    """Speculation: the tokens that the draft proposes to come next, and the probability it gave each of them.

    q: 1.0 where the draft names one token instead of drawing it (n-gram lookup, a greedy draft).
    """

    kind: ClassVar[str] = "draft"
    request: int
    token_ids: tuple[int, ...]
    q: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Schedule(Event):
    """The rows of this step: ``(request, num_tokens)``, draft tokens included.

    Their keys and values are written in this step.
    """

    kind: ClassVar[str] = "schedule"
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Traffic(Event):
    """Bytes that the target's forward pass moves at least: weights read once, K and V read and written."""

    kind: ClassVar[str] = "traffic"
    weight_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int


@dataclass(frozen=True, slots=True)
class Verify(Event):
    """Speculation: what became of a draft. Token i is accepted when those before it are and ``u[i] < p[i] / q[i]``.

    token_ids: the draft; p: the target's probability of each; u: the uniform draw for each (0.0 for a greedy request,
    whose p is 0 or 1). num_accepted: how many are kept. The others count as not computed: their slots are written
    again. The token that follows the accepted ones is in `Emit`.
    """

    kind: ClassVar[str] = "verify"
    request: int
    token_ids: tuple[int, ...]
    p: tuple[float, ...]
    u: tuple[float, ...]
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Fork(Event):
    """One prompt, several answers: the request begins with the whole block table of `parent`, which is computed.

    It never waited; it runs right behind the last of its group.
    """

    kind: ClassVar[str] = "fork"
    request: int
    parent: int


@dataclass(frozen=True, slots=True)
class Emit(Event):
    """New output tokens of this step: ``(request, num_tokens)``. The ids are in ``RequestRecord``."""

    kind: ClassVar[str] = "emit"
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cache(Event):
    """Prefix cache: entry `index` of the request's table, `block`, is full, and from now on it can be found."""

    kind: ClassVar[str] = "cache"
    request: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class Finish(Event):
    """The request is over. reason: "stop", "length", "abort" or "error"."""

    kind: ClassVar[str] = "finish"
    request: int
    reason: str


_IN_A_QUEUE = (Arrive, Admit, Wait, Preempt, Finish)
_IN_MEMORY = (Hit, Evict, Allocate, Copy, Free, Trim, Reserve, Release, Fork, Cache)
_COMPUTED = (Draft, Schedule, Traffic, Verify, Emit)
EVENT_KINDS: dict[str, type[Event]] = {event.kind: event for event in (*_IN_A_QUEUE, *_IN_MEMORY, *_COMPUTED)}


def event_from_json(value: Any) -> Event:
    """Rebuild an event from ``[kind, field, ...]``. Raises ValueError that names what was expected."""
    if not isinstance(value, list) or not value or value[0] not in EVENT_KINDS:
        raise ValueError(f"expected an event [kind, ...] with kind in {sorted(EVENT_KINDS)}, got {value!r:.80}")
    event_type = EVENT_KINDS[value[0]]
    names = [field.name for field in fields(event_type)]
    if len(value) != len(names) + 1:
        raise ValueError(f"expected {value[0]!r} with the fields {names}, got {len(value) - 1} values: {value!r:.80}")
    return event_type(*[_as_tuple(item) for item in value[1:]])


def _as_tuple(value: Any) -> Any:
    """A list of numbers, or a list of rows, as tuples."""
    if not isinstance(value, list):
        return value
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)
