"""`Scheduler`: who computes how many tokens in this step, and whose blocks they go to.

There is one rule: a step lets each request's `num_computed_tokens` catch up with its `num_tokens`, within a budget
of tokens. A prompt is far behind (prefill), or still behind after the last step (chunk); a decoding request is one
token behind; a preempted one is behind by all it had. What the prefix cache has of a request counts as computed
when it starts. None of them is a special case below.

Order: running requests first, oldest first, so that nobody who decodes waits for a long prompt; then the waiting
ones, in order of arrival. When memory runs out the youngest running request is preempted: it gives up its blocks and
computes them again later. The oldest is never preempted, and alone it fits (admission sees to that), so it always
finishes, and then the next one is the oldest: no livelock.

Draft tokens get what is left of the budget and of the free memory when everybody has been served, and the blocks of
those that are rejected go back in the same step. So nobody is preempted, and nobody waits, for a guess.
"""

from collections import deque
from dataclasses import dataclass, field

from servelab.cache import KVCacheManager, OutOfBlocks
from servelab.engine.config import EngineConfig
from servelab.engine.recorder import CacheManager, Recorder
from servelab.engine.request import Request


@dataclass(slots=True)
class Row:
    """`num_tokens` tokens of a request, to be computed in this step, and draft tokens behind them at most."""

    request: Request
    num_tokens: int
    max_drafts: int = 0


@dataclass(slots=True)
class Plan:
    """What one step does. No row is empty, and all its tokens have slots.

    admitted: requests that start in this step. copies: ``(source, target)`` blocks to be copied before it computes.
    """

    rows: list[Row] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """Two queues, both in order of arrival. It moves requests and block numbers, and never sees a tensor.

    max_drafts: draft tokens of one request and step at most; 0 without speculation.
    """

    def __init__(self, config: EngineConfig, cache: CacheManager, recorder: Recorder, max_drafts: int = 0) -> None:
        self.config = config
        self.cache = cache
        self.recorder = recorder
        self.max_drafts = max_drafts
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """Decide one step."""
        plan = Plan()
        budget = self._continue_running(plan, self.config.max_num_batched_tokens)
        budget = self._admit_waiting(plan, budget)
        if self.max_drafts:
            self._add_drafts(plan, budget)
        return plan

    def fork(self, parent: Request, child: Request) -> None:
        """Let a request begin with all that `parent` has in the cache; it runs behind the last of their group."""
        assert isinstance(self.cache, KVCacheManager), "slots in a row belong to one request"
        self.cache.fork(parent.sample_id, child.sample_id)
        self.recorder.fork(child.sample_id, parent.sample_id)
        group = [place for place, request in enumerate(self.running) if request.request_id == parent.request_id]
        self.running.insert(group[-1] + 1, child)

    def trim(self, request: Request) -> None:
        """Take back the blocks that only rejected draft tokens needed, before anybody else needs one."""
        if self.max_drafts:
            self.recorder.trim(request.sample_id, self.cache.trim(request.sample_id, request.num_tokens))

    def finish(self, request: Request, reason: str) -> None:
        """Take the request out, wherever it stands, and give back all it holds."""
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.recorder.finish(request.sample_id, reason)
        self._free(request)

    def _continue_running(self, plan: Plan, budget: int) -> int:
        """Rows for those who run already. Returns what is left of the budget."""
        for request in self.running:  # preemption shortens it, at its end
            if budget == 0:
                break
            num_tokens = len(request.token_ids) - request.num_computed_tokens
            if num_tokens > budget:
                num_tokens = budget
            if not self._make_room(request, request.num_computed_tokens + num_tokens):
                break
            if request.is_forked:
                self._own_last_block(request, plan)
            plan.rows.append(Row(request, num_tokens))
            budget -= num_tokens
        return budget

    def _admit_waiting(self, plan: Plan, budget: int) -> int:
        """Let requests start, and give them rows. Returns what is left of the budget."""
        batch_is_over = not self.running
        while self.waiting:
            request = self.waiting[0]
            # Nobody overtakes the first in the queue, or a long request could wait for ever.
            if obstacle := self._obstacle(request, budget, batch_is_over):
                self.recorder.wait(request.sample_id, obstacle)
                break
            prefix = self.cache.match_prefix(request.token_ids, request.params.cache_salt)
            needed = self.cache.num_missing(request.sample_id, self._tokens_to_reserve(request), prefix)
            if needed > self.cache.largest_free:
                self.recorder.wait(request.sample_id, "no_memory", needed)
                break
            self._admit(request, prefix)
            plan.admitted.append(request)
            num_tokens = min(request.num_uncomputed_tokens, budget)
            if num_tokens:
                plan.rows.append(Row(request, num_tokens))
            budget -= num_tokens
        return budget

    def _obstacle(self, request: Request, budget: int, batch_is_over: bool) -> str | None:
        """Why the request cannot start in this step, memory aside, or None. The names are those of the `Wait` event."""
        is_static = self.config.scheduling == "static"
        if is_static and not batch_is_over:
            return "batch_unfinished"
        # A prompt with several answers takes a seat for each of them from the start.
        num_seats = sum(1 + len(other.unborn) for other in self.running) + 1 + len(request.unborn)
        if num_seats > self.config.max_num_seqs:
            return "no_seat"
        # And a token of every later step: they will stand before a younger request, and may not cost it its own.
        # A static batch is filled in one step, even if the budget then computes its prompts over several.
        if not is_static and (budget == 0 or num_seats > self.config.max_num_batched_tokens):
            return "no_budget"
        return None

    def _admit(self, request: Request, prefix: list[int]) -> None:
        """Move a request from the queue to those who run, with the cached blocks of `prefix` and new ones behind."""
        self.running.append(self.waiting.popleft())
        self.recorder.admit(request.sample_id)
        if isinstance(self.cache, KVCacheManager):
            self.cache.share(request.sample_id, prefix)
            self.recorder.hit(request.sample_id, prefix)
        request.restart(num_cached_tokens=len(prefix) * self.cache.block_size)
        new = self.cache.allocate(request.sample_id, self._tokens_to_reserve(request))
        self.recorder.allocate(request.sample_id, new)
        self.cache.allocate(request.sample_id, request.num_tokens)  # of what is reserved, so much is used now

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Give a running request slots for `num_tokens` tokens in all, at the cost of the youngest ones.

        False when it was the youngest itself and had to go.
        """
        while True:
            try:
                new = self.cache.allocate(request.sample_id, num_tokens)
            except OutOfBlocks:
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is request:
                    return False
            else:
                if new:
                    self.recorder.allocate(request.sample_id, new)
                return True

    def _own_last_block(self, request: Request, plan: Plan) -> None:
        """Copy on write: the block of the next token may belong to other answers to the same prompt too."""
        copied = self.cache.copy_on_write(request.sample_id, request.num_computed_tokens)
        if copied is not None:
            index, source, target = copied
            plan.copies.append((source, target))
            self.recorder.copy(request.sample_id, index, source, target)
        request.is_forked = False

    def _add_drafts(self, plan: Plan, budget: int) -> None:
        """Let decoding rows verify draft tokens: as many as budget, memory and the request's own end allow."""
        for row in plan.rows:
            request, num_tokens = row.request, row.request.num_tokens
            if row.num_tokens > 1 or request.num_computed_tokens < num_tokens - 1 or request.unborn:
                continue  # a prompt
            # Of the drafts and one token of the target's own, which are emitted at most, that last one takes no slot.
            num_drafts = min(self.max_drafts, budget, request.max_num_tokens - num_tokens - 1)
            num_drafts = min(num_drafts, self._slots_in_reach(request) - num_tokens)
            if num_drafts > 0:
                new = self.cache.allocate(request.sample_id, num_tokens + num_drafts)
                if new:
                    self.recorder.allocate(request.sample_id, new)
                row.max_drafts = num_drafts
                budget -= num_drafts

    def _slots_in_reach(self, request: Request) -> int:
        """Slots that a running request holds or could get without taking any from others."""
        held = self.cache.num_slots_held(request.sample_id)
        if isinstance(self.cache, KVCacheManager):
            return held + self.cache.num_free * self.cache.block_size
        return held

    def _preempt(self, request: Request) -> None:
        # It is older than all who wait, so it goes to the head of their queue.
        self.waiting.appendleft(self.running.pop())
        request.restart(num_cached_tokens=0)
        request.metrics.num_preemptions += 1
        self.recorder.preempt(request.sample_id)
        self._free(request)

    def _free(self, request: Request) -> None:
        self.recorder.free(request.sample_id, self.cache.free(request.sample_id))

    def _tokens_to_reserve(self, request: Request) -> int:
        """How many slots a request must get to start: a paged cache grows with it, a contiguous one cannot."""
        return request.num_tokens if isinstance(self.cache, KVCacheManager) else request.max_num_tokens
