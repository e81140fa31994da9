"""`Scheduler`: who computes how many tokens in this step, and whose blocks they go to.

There is one rule: a step lets each request's `num_computed_tokens` catch up with its `num_tokens`, within a budget
of tokens. A prompt is far behind (prefill), or still behind after the last step (chunk); a decoding request is one
token behind; a preempted one is behind by all it had. None of them is a special case below.

Order: running requests first, oldest first, so that nobody who decodes waits for a long prompt; then the waiting
ones, in order of arrival. When memory runs out the youngest running request is preempted: it gives up its blocks and
computes them again later. The oldest is never preempted, and alone it fits (admission sees to that), so it always
finishes, and then the next one is the oldest: no livelock.
"""

from collections import deque
from typing import NamedTuple

from servelab.cache import KVCacheManager
from servelab.engine.config import EngineConfig
from servelab.engine.recorder import CacheManager, Recorder
from servelab.engine.request import Request


class Row(NamedTuple):
    """`num_tokens` tokens of a request, to be computed in this step."""

    request: Request
    num_tokens: int


class Scheduler:
    """Two queues, both in order of arrival. It moves requests and block numbers, and never sees a tensor."""

    def __init__(self, config: EngineConfig, cache: CacheManager, recorder: Recorder) -> None:
        self.config = config
        self.cache = cache
        self.recorder = recorder
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> list[Row]:
        """Decide one step. Every row's tokens have slots when this returns; no row is empty."""
        rows = self._schedule_running(self.config.max_num_batched_tokens)
        budget = self.config.max_num_batched_tokens - sum(row.num_tokens for row in rows)
        return rows + self._admit_waiting(budget)

    def finish(self, request: Request, reason: str) -> None:
        """Take the request out, wherever it stands, and give back all it holds."""
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.recorder.finish(request.request_id, reason)
        self._free(request)

    def _schedule_running(self, budget: int) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < len(self.running) and budget > 0:
            request = self.running[len(rows)]
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if not self._make_room(request, request.num_computed_tokens + num_tokens):
                break
            rows.append(Row(request, num_tokens))
            budget -= num_tokens
        return rows

    def _admit_waiting(self, budget: int) -> list[Row]:
        rows: list[Row] = []
        batch_is_over = not self.running
        while self.waiting:
            request = self.waiting[0]
            obstacle = self._obstacle(request, budget, batch_is_over)
            if obstacle:
                # Nobody overtakes the first in the queue, or a long request could wait for ever.
                needed = self._num_missing(request) if obstacle == "no_memory" else 0
                self.recorder.wait(request.request_id, obstacle, needed)
                break
            self.running.append(self.waiting.popleft())
            self.recorder.admit(request.request_id)
            self._allocate(request, request.num_tokens)
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if num_tokens:
                rows.append(Row(request, num_tokens))
            budget -= num_tokens
        return rows

    def _obstacle(self, request: Request, budget: int, batch_is_over: bool) -> str | None:
        """Why the request cannot start in this step, or None. The names are those of the `Wait` event."""
        is_static = self.config.scheduling == "static"
        if is_static and not batch_is_over:
            return "batch_unfinished"
        if len(self.running) == self.config.max_num_seqs:
            return "no_seat"
        # A static batch is filled in one step, even if the budget then computes its prompts over several.
        if budget == 0 and not is_static:
            return "no_budget"
        if self._num_missing(request) > self.cache.largest_free:
            return "no_memory"
        return None

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Give a running request slots for `num_tokens` tokens in all, at the cost of the youngest ones.

        False when it was the youngest itself and had to go.
        """
        while not self.cache.can_allocate(request.request_id, self._tokens_to_hold(request, num_tokens)):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        self._allocate(request, num_tokens)
        return True

    def _preempt(self, request: Request) -> None:
        # It is older than all who wait, so it goes to the head of their queue.
        self.waiting.appendleft(self.running.pop())
        request.num_computed_tokens = 0
        request.metrics.num_preemptions += 1
        self.recorder.preempt(request.request_id)
        self._free(request)

    def _allocate(self, request: Request, num_tokens: int) -> None:
        new = self.cache.allocate(request.request_id, self._tokens_to_hold(request, num_tokens))
        self.recorder.allocate(request.request_id, new)

    def _free(self, request: Request) -> None:
        self.recorder.free(request.request_id, self.cache.free(request.request_id))

    def _num_missing(self, request: Request) -> int:
        """Blocks (or slots) that a waiting request lacks: it starts only when all the tokens it has now fit."""
        return self.cache.num_missing(request.request_id, self._tokens_to_hold(request, request.num_tokens))

    def _tokens_to_hold(self, request: Request, num_tokens: int) -> int:
        """A paged cache grows with the request; a contiguous one must reserve at once all that may ever come."""
        return num_tokens if isinstance(self.cache, KVCacheManager) else request.max_num_tokens
