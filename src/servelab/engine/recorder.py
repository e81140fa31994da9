"""`Recorder`: writes down what scheduler and engine decide, as the events of a `Trace`.

It observes and decides nothing. Request ids become indices into ``Trace.requests`` here and nowhere else.
"""

from collections.abc import Iterable

from servelab.cache import ContiguousCacheManager, KVCacheManager
from servelab.trace import (
    Admit,
    Allocate,
    Arrive,
    Emit,
    Event,
    Finish,
    Free,
    Preempt,
    Release,
    RequestRecord,
    Reserve,
    Schedule,
    StepRecord,
    Trace,
    Wait,
)

CacheManager = KVCacheManager | ContiguousCacheManager


class Recorder:
    """Appends events to the open step of `trace`. The first event after `close_step` opens the next step."""

    def __init__(self, trace: Trace, cache: CacheManager) -> None:
        self.trace = trace
        self.cache = cache
        self._indices: dict[str, int] = {}
        self._open: StepRecord | None = None

    def arrive(self, request_id: str, prompt_token_ids: list[int], max_tokens: int, token_texts: list[str]) -> None:
        self._indices[request_id] = len(self.trace.requests)
        record = RequestRecord(request_id, list(prompt_token_ids), max_tokens, token_texts=list(token_texts))
        self.trace.requests.append(record)
        self._append(Arrive(self._indices[request_id]))

    def admit(self, request_id: str) -> None:
        self._append(Admit(self._indices[request_id]))

    def wait(self, request_id: str, reason: str, needed: int = 0) -> None:
        """The head of the queue stays there. needed: blocks or slots, where the reason is memory."""
        memory = (needed, self.cache.num_free, self.cache.largest_free) if needed else ()
        self._append(Wait(self._indices[request_id], reason, *memory))

    def allocate(self, request_id: str, new: list[int] | range) -> None:
        """`new` is what the cache's `allocate` returned: blocks (paged) or a range of slots (contiguous)."""
        index = self._indices[request_id]
        if isinstance(new, range):
            if new:
                self._append(Reserve(index, new.start, len(new)))
        elif isinstance(self.cache, KVCacheManager):
            first = len(self.cache.block_table(request_id)) - len(new)
            for offset, block in enumerate(new):
                self._append(Allocate(index, first + offset, block))

    def preempt(self, request_id: str) -> None:
        self._append(Preempt(self._indices[request_id]))

    def free(self, request_id: str, freed: list[int] | range) -> None:
        """`freed` is what the cache's `free` returned."""
        index = self._indices[request_id]
        if isinstance(freed, range):
            if freed:
                self._append(Release(index, freed.start, len(freed)))
        else:
            for block in freed:
                self._append(Free(index, block))

    def compute(self, rows: Iterable[tuple[str, int]]) -> None:
        """The rows whose keys and values were written in this step."""
        self._append(Schedule(self._by_index(rows)))

    def emit(self, tokens: Iterable[tuple[str, int, str]]) -> None:
        """New output tokens: ``(request_id, token_id, token_text)``."""
        emitted = list(tokens)
        for request_id, token_id, text in emitted:
            record = self.trace.requests[self._indices[request_id]]
            record.output_token_ids.append(token_id)
            record.token_texts.append(text)
        if emitted:
            self._append(Emit(self._by_index((request_id, 1) for request_id, _, _ in emitted)))

    def finish(self, request_id: str, reason: str) -> None:
        self._append(Finish(self._indices[request_id], reason))

    def close_step(self, duration_s: float = 0.0) -> None:
        """End the step, if anything happened in it."""
        if self._open is not None:
            self._open.duration_s = duration_s
            self._open = None

    def _by_index(self, rows: Iterable[tuple[str, int]]) -> tuple[tuple[int, int], ...]:
        return tuple((self._indices[request_id], num_tokens) for request_id, num_tokens in rows)

    def _append(self, event: Event) -> None:
        if self._open is None:
            self._open = StepRecord()
            self.trace.steps.append(self._open)
        self._open.events.append(event)
