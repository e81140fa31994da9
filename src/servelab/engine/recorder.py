"""`Recorder`: writes down what scheduler and engine decide, as the events of a `Trace`.

It observes and decides nothing. Request ids become indices into ``Trace.requests`` here and nowhere else.
"""

from collections.abc import Iterable, Sequence

from servelab.cache import ContiguousCacheManager, KVCacheManager
from servelab.sampling import Verification
from servelab.trace import (
    Admit,
    Allocate,
    Arrive,
    Cache,
    Copy,
    Draft,
    Emit,
    Event,
    Evict,
    Finish,
    Fork,
    Free,
    Hit,
    Preempt,
    Release,
    RequestRecord,
    Reserve,
    Schedule,
    StepRecord,
    Trace,
    Traffic,
    Trim,
    Verify,
    Wait,
)

CacheManager = KVCacheManager | ContiguousCacheManager


class Recorder:
    """Appends events to the open step of `trace`. The first event after `close_step` opens the next step.

    is_on: else nothing is written down.
    """

    def __init__(self, trace: Trace, cache: CacheManager, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self.trace = trace
        self.cache = cache
        self._indices: dict[str, int] = {}
        self._open: StepRecord | None = None

    def expect(self, request_id: str, prompt_token_ids: list[int], max_tokens: int, token_texts: list[str]) -> None:
        """Give a request its place in the trace. It arrives, or is forked from another one, later."""
        if not self.is_on:
            return
        self._indices[request_id] = len(self.trace.requests)
        record = RequestRecord(request_id, list(prompt_token_ids), max_tokens, token_texts=list(token_texts))
        self.trace.requests.append(record)

    def arrive(self, request_id: str) -> None:
        self._append(Arrive(self._place(request_id)))

    def admit(self, request_id: str) -> None:
        self._append(Admit(self._place(request_id)))

    def wait(self, request_id: str, reason: str, needed: int = 0) -> None:
        """The head of the queue stays there. needed: blocks or slots, where the reason is memory."""
        memory = (needed, self.cache.num_free, self.cache.largest_free) if needed else ()
        self._append(Wait(self._place(request_id), reason, *memory))

    def hit(self, request_id: str, prefix: list[int]) -> None:
        """The request begins with these blocks of the prefix cache."""
        for index, block in enumerate(prefix):
            self._append(Hit(self._place(request_id), index, block))

    def allocate(self, request_id: str, new: list[int] | range) -> None:
        """`new` is what the cache's `allocate` returned: blocks (paged) or a range of slots (contiguous)."""
        request = self._place(request_id)
        if isinstance(new, range):
            if new:
                self._append(Reserve(request, new.start, len(new)))
        elif new:
            evicted = set(self.cache.take_evictions())
            first = self.cache.num_slots_held(request_id) // self.cache.block_size - len(new)
            for offset, block in enumerate(new):
                if block in evicted:
                    self._append(Evict(block))
                self._append(Allocate(request, first + offset, block))

    def copy(self, request_id: str, index: int, source: int, block: int) -> None:
        """What the cache's `copy_on_write` returned."""
        for evicted in self.cache.take_evictions():
            self._append(Evict(evicted))
        self._append(Copy(self._place(request_id), index, source, block))

    def preempt(self, request_id: str) -> None:
        self._append(Preempt(self._place(request_id)))

    def free(self, request_id: str, freed: list[int] | range) -> None:
        """`freed` is what the cache's `free` returned."""
        index = self._place(request_id)
        if isinstance(freed, range):
            if freed:
                self._append(Release(index, freed.start, len(freed)))
        else:
            for block in freed:
                self._append(Free(index, block))

    def trim(self, request_id: str, given_back: list[int] | range) -> None:
        """`given_back` is what the cache's `trim` returned: no block where it was a range."""
        for block in given_back:
            self._append(Trim(self._place(request_id), block))

    def draft(self, request_id: str, draft: Sequence[int], verification: Verification) -> None:
        """What was proposed. The probabilities are known once it is verified."""
        self._append(Draft(self._place(request_id), tuple(draft), _short(verification.q)))

    def compute(self, rows: Iterable[tuple[str, int]]) -> None:
        """The rows whose keys and values were written in this step."""
        self._append(Schedule(self._by_index(rows)))

    def traffic(self, weight_bytes: int, kv_read_bytes: int, kv_written_bytes: int) -> None:
        self._append(Traffic(weight_bytes, kv_read_bytes, kv_written_bytes))

    def verify(self, request_id: str, draft: Sequence[int], verification: Verification, num_accepted: int) -> None:
        """num_accepted: the accepted draft tokens that were kept; what follows the end of an output is not."""
        p, u = _short(verification.p), _short(verification.u)
        self._append(Verify(self._place(request_id), tuple(draft), p, u, num_accepted))

    def fork(self, request_id: str, parent_id: str) -> None:
        self._append(Fork(self._place(request_id), self._place(parent_id)))

    def emit(self, rows: Iterable[tuple[str, Sequence[int], Sequence[str]]]) -> None:
        """New output tokens: ``(request_id, token_ids, token_texts)``."""
        if not self.is_on:
            return
        counts = []
        for request_id, token_ids, texts in rows:
            record = self.trace.requests[self._place(request_id)]
            record.output_token_ids += token_ids
            record.token_texts += texts
            counts.append((request_id, len(token_ids)))
        if counts:
            self._append(Emit(self._by_index(counts)))

    def cache_blocks(self, request_id: str, found: list[tuple[int, int]]) -> None:
        """`found` is what the cache's `cache_full_blocks` returned."""
        for index, block in found:
            self._append(Cache(self._place(request_id), index, block))

    def finish(self, request_id: str, reason: str) -> None:
        self._append(Finish(self._place(request_id), reason))

    def close_step(self, duration_s: float = 0.0) -> None:
        """End the step, if anything happened in it."""
        if self._open is not None:
            self._open.duration_s = duration_s
            self._open = None

    def _by_index(self, rows: Iterable[tuple[str, int]]) -> tuple[tuple[int, int], ...]:
        return tuple([(self._place(request_id), num_tokens) for request_id, num_tokens in rows])

    def _place(self, request_id: str) -> int:
        """Of a request in the trace; nobody's where nothing is written down."""
        return self._indices[request_id] if self.is_on else -1

    def _append(self, event: Event) -> None:
        if not self.is_on:
            return
        if self._open is None:
            self._open = StepRecord()
            self.trace.steps.append(self._open)
        self._open.events.append(event)


def _short(probabilities: Sequence[float]) -> tuple[float, ...]:
    """Six digits: enough to compare, and short in a file."""
    return tuple([float(f"{probability:.6g}") for probability in probabilities])
