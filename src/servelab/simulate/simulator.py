"""`simulate`: the engine's own scheduler and blocks, under a clock that a roofline drives instead of a model.

A step is planned as in `servelab.engine.Engine`; then nothing is computed, and the clock moves by what the step would
take. So a 70B model on a GPU that nobody here owns meets the same queues, preemptions and tables, at thousands of
requests, and its trace plays in the same widgets. Prefix caching has no part: nobody knows what the prompts say.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from servelab.cache import ContiguousCacheManager, KVCacheManager
from servelab.costs import StepWork, weight_bytes_read
from servelab.engine import EngineConfig, RequestMetrics
from servelab.engine.detokenizer import Detokenizer
from servelab.engine.recorder import CacheManager, Recorder
from servelab.engine.request import Request
from servelab.engine.scheduler import Row, Scheduler
from servelab.sampling import SamplingParams, Verification, make_generator
from servelab.simulate.admission import check_arrivals, length_limit, pool_size
from servelab.simulate.deployment import Deployment
from servelab.simulate.load import Arrival, ClosedLoop, arrive_at_once
from servelab.simulate.result import Served, Simulation
from servelab.simulate.speculation import TOKEN, Drafting
from servelab.trace import Trace


def simulate(
    deployment: Deployment,
    config: EngineConfig,
    load: Iterable[Arrival] | ClosedLoop,
    *,
    drafting: Drafting | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Simulation:
    """Serve the whole load on paper.

    config: `num_blocks` or `kv_cache_bytes` is needed. What concerns numbers instead of places has no part
    (`kv_cache_dtype`, `kv_scales`, `attention`: see `Deployment.bytes_per_element`), nor `prefix_caching` and
    `speculative` (see `drafting`). seed: of which draft tokens are accepted. progress: show a bar.
    Raises ValueError for a request that can never fit, or for a load without one.
    """
    return Simulator(deployment, config, load, drafting=drafting, seed=seed).run(progress=progress)


class Simulator:
    """One simulation. `run` it once; `trace` and `cache` are those of an engine."""

    def __init__(
        self,
        deployment: Deployment,
        config: EngineConfig,
        load: Iterable[Arrival] | ClosedLoop,
        *,
        drafting: Drafting | None = None,
        seed: int = 0,
    ) -> None:
        self.deployment, self.config, self.drafting = deployment, config, drafting
        self._random = random.Random(seed)
        self._think_s = load.think_s if isinstance(load, ClosedLoop) else 0.0
        self._later = deque(load.later() if isinstance(load, ClosedLoop) else ())
        first = load.first() if isinstance(load, ClosedLoop) else load
        self._to_come = deque(sorted(first, key=lambda arrival: arrival.time_s))
        num_blocks, num_slots = pool_size(deployment, config)
        longest = length_limit(deployment.spec, config, num_slots)
        check_arrivals([*self._to_come, *arrive_at_once(self._later)], min(longest, num_slots))
        self.cache: CacheManager
        if config.kv_cache == "paged":
            self.cache = KVCacheManager(num_blocks, config.block_size)
        else:  # a pool of the same size, in units of one slot
            self.cache = ContiguousCacheManager(num_slots, config.reserve, longest)
        self.trace = Trace(
            kv_cache=config.kv_cache,
            num_blocks=num_blocks if config.kv_cache == "paged" else num_slots,
            block_size=self.cache.block_size,
            scheduling=config.scheduling,
            max_num_seqs=config.max_num_seqs,
            model=deployment.spec.name,
            machine=f"simulated: {deployment.roofline.name}",
            kv_bytes_per_token=deployment.kv_bytes_per_token,
        )
        self.recorder = Recorder(self.trace, self.cache, is_on=config.record_trace)
        self.scheduler = Scheduler(config, self.cache, self.recorder, drafting.k if drafting else 0)
        # One of each for all requests: nothing is drawn and nothing is decoded.
        self._generator, self._detokenizer = make_generator(0, "cpu"), Detokenizer(lambda token_ids: "")
        self.clock = self._start = self._to_come[0].time_s
        self.result = Simulation(trace=self.trace if config.record_trace else None)
        self._served: dict[str, Served] = {}

    def run(self, *, progress: bool = False) -> Simulation:
        """Go on to the end."""
        total = len(self._to_come) + len(self._later)
        with tqdm(total=total, unit=" requests", disable=not progress) as bar:
            while self._to_come or self.scheduler.running or self.scheduler.waiting:
                self._let_in()
                bar.update(self._step())
        self.result.seconds = self.clock - self._start
        return self.result

    def _let_in(self) -> None:
        """Those who have come by now; with nothing to do, the clock moves to whoever comes next."""
        if not (self.scheduler.running or self.scheduler.waiting):
            self.clock = max(self.clock, self._to_come[0].time_s)
        while self._to_come and self._to_come[0].time_s <= self.clock:
            arrival = self._to_come.popleft()
            name = str(len(self._served))
            self._served[name] = Served(arrival)
            self.result.served.append(self._served[name])
            request = self._new_request(name, arrival)
            if self.config.record_trace:
                self.recorder.expect(name, request.token_ids, arrival.output_tokens, [""] * arrival.prompt_tokens)
            self.recorder.arrive(name)
            self.scheduler.add(request)

    def _step(self) -> int:
        """Plan a step, let its time pass, and count what it computed. Returns how many requests ended."""
        rows = self.scheduler.schedule().rows
        work = step_work(rows)
        seconds = self.deployment.step_seconds(work) + self._draft_seconds(rows)
        self.clock += seconds
        num_running = len(self.scheduler.running)
        self.result.num_steps += 1
        self.result.peak_running = max(self.result.peak_running, num_running)
        self.result.running.add(seconds, num_running, work.num_context_tokens)
        if self.scheduler.waiting:
            self.result.running_when_full.add(seconds, num_running, work.num_context_tokens)
        verifications = self._verify(rows)
        self._record(rows, work, verifications)
        ended = self._advance(rows, verifications)
        self.recorder.close_step(seconds)
        return ended

    def _draft_seconds(self, rows: Sequence[Row]) -> float:
        """Time of the draft's own steps: one for each token of the longest draft, for all requests together."""
        if self.drafting is None or not self.drafting.draft_cost:
            return 0.0
        longest = max(row.max_drafts for row in rows)
        alone = StepWork()
        alone.add(1, max(row.request.num_computed_tokens for row in rows))
        return longest * self.drafting.draft_cost * self.deployment.step_seconds(alone) if longest else 0.0

    def _verify(self, rows: Sequence[Row]) -> dict[str, Verification]:
        """What becomes of each draft, by the name of its request."""
        if self.drafting is None:
            return {}
        return {
            row.request.sample_id: self.drafting.verify(row.max_drafts, self._random) for row in rows if row.max_drafts
        }

    def _record(self, rows: Sequence[Row], work: StepWork, verifications: dict[str, Verification]) -> None:
        """What was drafted and computed, before anything comes of it."""
        if not self.config.record_trace:
            return
        for name, verification in verifications.items():
            self.recorder.draft(name, [TOKEN] * len(verification.u), verification)
        self.recorder.compute((row.request.sample_id, row.num_tokens + row.max_drafts) for row in rows)
        deployment = self.deployment
        sizes = (deployment.bytes_per_parameter, deployment.bytes_per_embedding)
        weights = weight_bytes_read(deployment.spec, work.num_tokens, *sizes)
        token_bytes = deployment.kv_bytes_per_token
        self.recorder.traffic(int(weights), work.num_context_tokens * token_bytes, work.num_tokens * token_bytes)

    def _advance(self, rows: Sequence[Row], verifications: dict[str, Verification]) -> int:
        """Count the rows as computed, give those that caught up their next tokens, and let go who is done."""
        extended: list[tuple[Request, int]] = []
        for row in rows:
            request = row.request
            request.num_computed_tokens += row.num_tokens
            if request.num_computed_tokens == len(request.token_ids):
                extended.append((request, self._extend(request, verifications.get(request.sample_id))))
        if self.config.record_trace:
            self.recorder.emit((request.sample_id, [TOKEN] * count, [""] * count) for request, count in extended)
        finished = [request for request, _ in extended if len(request.token_ids) == request.max_num_tokens]
        if self.drafting is not None:
            for request, _ in extended:
                if len(request.token_ids) < request.max_num_tokens:
                    self.scheduler.trim(request)
        for request in finished:
            self._finish(request)
        return len(finished)

    def _extend(self, request: Request, verification: Verification | None) -> int:
        """Give a request its next tokens; returns how many."""
        count = 1
        if verification is not None:
            accepted = verification.num_accepted
            count += accepted
            request.num_computed_tokens += accepted
            if self.config.record_trace:
                self.recorder.verify(request.sample_id, [TOKEN] * len(verification.u), verification, accepted)
        request.token_ids += [TOKEN] * count
        served = self._served[request.request_id]
        if served.first_token_s is None:
            served.first_token_s = self.clock
        return count

    def _finish(self, request: Request) -> None:
        self.scheduler.finish(request, "length")
        served = self._served[request.request_id]
        served.finish_s, served.num_preemptions = self.clock, request.metrics.num_preemptions
        if self._later:
            length = self._later.popleft()
            self._to_come.append(Arrival(self.clock + self._think_s, length.prompt_tokens, length.output_tokens))

    def _new_request(self, name: str, arrival: Arrival) -> Request:
        return Request(
            request_id=name,
            index=0,
            token_ids=[TOKEN] * arrival.prompt_tokens,
            params=SamplingParams(max_tokens=arrival.output_tokens),
            end_token_ids=frozenset(),
            generator=self._generator,
            detokenizer=self._detokenizer,
            metrics=RequestMetrics(arrival_s=arrival.time_s, num_prompt_tokens=arrival.prompt_tokens),
        )


def step_work(rows: Iterable[Row]) -> StepWork:
    """What the rows of a plan add up to."""
    work = StepWork()
    for row in rows:
        before = row.request.num_computed_tokens
        catches_up = before + row.num_tokens == len(row.request.token_ids)
        work.add(row.num_tokens + row.max_drafts, before, 1 + row.max_drafts if catches_up else 0)
    return work
