"""`Engine`: requests in, tokens out.

One step: the scheduler picks rows, a draft guesses what comes next, the runner computes both, the sampler chooses the
next tokens of each row that caught up, and whoever is done leaves and gives everything back.
"""

import itertools
import time
from collections.abc import Sequence

from servelab.cache import ContiguousCacheManager, KVCacheManager, KVStorage
from servelab.device import machine_name
from servelab.engine.admission import (
    check_length,
    check_params,
    check_parts,
    check_prompt,
    check_prompts,
    check_request_id,
    check_seats,
)
from servelab.engine.config import EngineConfig
from servelab.engine.detokenizer import Detokenizer, TokenTexts
from servelab.engine.interrupt import uninterrupted
from servelab.engine.memory import length_limit, pool_blocks
from servelab.engine.output import RequestMetrics, RequestOutput
from servelab.engine.recorder import CacheManager, Recorder
from servelab.engine.request import Request, sample_id
from servelab.engine.runner import Forward, Runner
from servelab.engine.sampler import Choice, Sampler
from servelab.engine.scheduler import Row, Scheduler
from servelab.engine.speculator import Speculator
from servelab.model import Model
from servelab.sampling import SamplingParams, make_generator
from servelab.speculative import Draft, SpeculationMetrics
from servelab.trace import Trace


class Engine:
    """Serves many requests with one model. Not thread-safe: one thread calls it.

    cache: the block tables (`KVCacheManager`, or `ContiguousCacheManager`); storage: the tensors behind them.
    max_model_len: prompt and output tokens of one request at most. trace: what happened so far, step by step.
    """

    def __init__(self, model: Model, config: EngineConfig | None = None) -> None:
        self.model, self.config = check_parts(model, config)
        self.speculator = Speculator(self.config.speculative, model)
        block_size = self.config.block_size
        num_blocks = pool_blocks(model, self.config, self.speculator.block_bytes(block_size))
        self.max_model_len = length_limit(model, self.config, num_blocks * block_size)
        if self.config.kv_cache == "contiguous":  # a pool of the same size, in units of one slot
            num_blocks, block_size = num_blocks * block_size, 1
        shape = (model.config.num_layers, num_blocks, block_size, model.config.num_kv_heads, model.config.head_dim)
        self.storage = KVStorage(*shape, model.dtype, model.device, format=self.config.kv_cache_dtype)
        if self.config.kv_scales is not None:
            self.storage.set_scales(self.config.kv_scales)
        self.cache: CacheManager
        if self.config.kv_cache == "paged":
            self.cache = KVCacheManager(
                num_blocks, block_size, prefix_caching=self.config.prefix_caching, storage=self.storage
            )
        else:
            self.cache = ContiguousCacheManager(
                num_blocks, self.config.reserve, self.max_model_len, storage=self.storage
            )
        self.speculator.attach(self.cache)
        self.trace = Trace(
            kv_cache=self.config.kv_cache,
            num_blocks=num_blocks,
            block_size=block_size,
            scheduling=self.config.scheduling,
            max_num_seqs=self.config.max_num_seqs,
            model=model.name,
            machine=machine_name(),
            kv_bytes_per_token=self.storage.bytes_per_token(),
        )
        self.recorder = Recorder(self.trace, self.cache, is_on=self.config.record_trace)
        self.scheduler = Scheduler(self.config, self.cache, self.recorder, self.speculator.max_drafts)
        self.runner = Runner(model, self.storage, self.cache, self.config.attention)
        self.sampler = Sampler(model.tokenizer.eos_token_ids)
        self._token_texts = TokenTexts(model.tokenizer)
        self._requests: dict[str, Request] = {}  # by sample_id, those that were not forked yet too
        self._undelivered: list[RequestOutput] = []
        self._numbers = itertools.count()

    @property
    def speculation(self) -> SpeculationMetrics:
        """What drafting brought, over all requests; those of one request are in its `RequestMetrics`."""
        return self.speculator.metrics

    def add_request(
        self, prompt: str | list[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> str:
        """Put a request at the end of the queue and return its id.

        prompt: text, or token ids. params: default `SamplingParams()`. request_id: default "0", "1", ...
        Raises ValueError, and changes nothing, for an empty prompt, ids outside the vocabulary, an id that an
        unfinished request has, prompt + max_tokens beyond `max_model_len` or the whole KV pool, or more answers (`n`)
        than can run at once or get a token each in one step.
        """
        group = self._new_group(prompt, params, request_id)
        self._enqueue(group)
        return group[0].request_id

    def step(self) -> list[RequestOutput]:
        """Compute one step; return an output for each request that got a token or ended since the last step.

        When drafting, the forward pass or the sampling raises, the requests of this step end with "error", the
        exception goes on to the caller, and the engine goes on with the others: the next `step` returns their outputs.
        Interrupted (KeyboardInterrupt), a step may simply be repeated.
        """
        started = time.perf_counter()
        try:
            with uninterrupted():
                plan = self.scheduler.schedule()
                if plan.copies:
                    self.storage.copy_blocks(plan.copies)
                self.speculator.prepare(plan)
                for request in plan.admitted:
                    if request.metrics.num_preemptions == 0:
                        request.metrics.num_cached_tokens = request.num_computed_tokens
            if plan.rows:
                self._compute(plan.rows)
        finally:
            self.recorder.close_step(time.perf_counter() - started)
        outputs, self._undelivered = self._undelivered, []
        return outputs

    def abort(self, request_id: str) -> None:
        """End a request now, all its answers, and free what it holds.

        The next `step` returns its outputs, with reason "abort". An id that is finished or unknown is left alone: a
        client may go away after its last token. Raises ValueError for what cannot be an id.
        """
        if not isinstance(request_id, str):
            raise ValueError(f"expected request_id as a str, got {request_id!r}")
        for request in [request for request in self._requests.values() if request.request_id == request_id]:
            if request.sample_id in self._requests:  # not gone with the one it was to be forked from
                self._finish(request, "abort")

    def has_unfinished(self) -> bool:
        """Whether `step` still has something to compute or to tell."""
        return bool(self._requests or self._undelivered)

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Run all prompts to their end; return their final outputs in the order of the prompts, `n` for each.

        params: one for all, or one for each. Requests that were added before run beside them; the next `step`
        returns what they produced. Raises ValueError, and runs nothing, when any prompt cannot be admitted. When it
        is interrupted or a step fails, its requests are aborted and the engine is as if they had never come.
        """
        groups = [self._new_group(*pair) for pair in check_prompts(prompts, params)]
        own = {request.request_id for group in groups for request in group}
        final: dict[str, RequestOutput] = {}
        others: list[RequestOutput] = []
        try:
            with uninterrupted():
                for group in groups:
                    self._enqueue(group)
            while len(final) < sum(map(len, groups)):
                for output in self.step():
                    if output.request_id not in own:
                        others.append(output)
                    elif output.finish_reason is not None:
                        final[sample_id(output.request_id, output.index)] = output
        finally:
            with uninterrupted():
                for request_id in own:
                    self.abort(request_id)
                undelivered = others + self._undelivered
                self._undelivered = [output for output in undelivered if output.request_id not in own]
        return [final[request.sample_id] for group in groups for request in group]

    def _new_group(self, prompt: object, params: object, request_id: str | None = None) -> list[Request]:
        """The answers to one prompt; nothing is changed yet. Raises ValueError as `add_request` does."""
        token_ids = check_prompt(prompt, self.model)
        checked = check_params(params, self.model)
        check_length(len(token_ids), checked.max_tokens, self.max_model_len, self.cache.num_slots)
        check_seats(checked.n, self.config)
        if request_id is None:
            request_id = next(name for name in map(str, self._numbers) if self._is_free(name, checked.n))
        else:
            check_request_id(request_id, checked.n, self._requests)
        end_token_ids = () if checked.ignore_eos else self.model.tokenizer.eos_token_ids
        return [
            Request(
                request_id=request_id,
                index=index,
                token_ids=list(token_ids),
                params=checked,
                end_token_ids=frozenset((*checked.stop_token_ids, *end_token_ids)),
                generator=make_generator(checked.seed, self.model.device, index),
                detokenizer=Detokenizer(self.model.tokenizer.decode, checked.stop),
                metrics=RequestMetrics(arrival_s=time.perf_counter(), num_prompt_tokens=len(token_ids)),
            )
            for index in range(checked.n)
        ]

    def _is_free(self, request_id: str, n: int) -> bool:
        """Whether nobody has this name: nor one whose last output is still to be told, which would be taken for it."""
        told = (output.request_id for output in self._undelivered)
        return request_id not in told and not any(sample_id(request_id, i) in self._requests for i in range(n))

    def _enqueue(self, group: list[Request]) -> None:
        """Let the answers to one prompt wait: the first one for all, where they can share blocks; else each its own."""
        first, *others = group
        for request in group:
            self._requests[request.sample_id] = request
            texts = self._token_texts(request.token_ids)
            self.recorder.expect(request.sample_id, request.token_ids, request.params.max_tokens, texts)
        if isinstance(self.cache, KVCacheManager):
            first.unborn, group = others, [first]
        for request in group:
            self.recorder.arrive(request.sample_id)
            self.scheduler.add(request)

    def _compute(self, rows: list[Row]) -> None:
        """Run the rows. What they brought is written down as a whole, or, after an exception, not at all."""
        try:
            with uninterrupted():
                drafts = self.speculator.propose(rows)
            forward = self.runner.run(rows, [draft.token_ids for draft in drafts])
        except Exception:
            self._fail(rows)
            raise
        with uninterrupted():
            try:
                choices = self.sampler.choose(rows, drafts, forward.logits)
                self.speculator.observe(rows, drafts, choices, forward.hidden)
            except Exception:
                self._fail(rows)
                raise
            self._record_pass(rows, drafts, forward, choices)
            self._advance(rows, choices)

    def _record_pass(
        self, rows: Sequence[Row], drafts: Sequence[Draft], forward: Forward, choices: Sequence[Choice]
    ) -> None:
        """What was drafted and computed, before anything comes of it."""
        for choice in choices:
            if choice.draft:
                self.recorder.draft(choice.request.sample_id, choice.draft, choice.verification)
        self.recorder.compute(
            (row.request.sample_id, row.num_tokens + len(draft.token_ids))
            for row, draft in zip(rows, drafts, strict=True)
        )
        num_tokens, token_bytes = len(forward.hidden), self.trace.kv_bytes_per_token
        self.recorder.traffic(
            self.runner.weight_bytes, forward.num_context_tokens * token_bytes, num_tokens * token_bytes
        )

    def _advance(self, rows: Sequence[Row], choices: Sequence[Choice]) -> None:
        """Count the rows as computed, give those that caught up their next tokens, and let go who is done."""
        for row in rows:
            row.request.num_computed_tokens += row.num_tokens
        news = [self._extend(choice) for choice in choices]
        for choice in choices:
            if choice.request.unborn:
                self._fork(choice.request)
        self.recorder.emit(
            (choice.request.sample_id, token_ids, self._token_texts(token_ids))
            for choice, (token_ids, _, _) in zip(choices, news, strict=True)
        )
        for row in rows:
            self._cache_full_blocks(row.request)
        for choice, (_, _, reason) in zip(choices, news, strict=True):
            if reason is None:
                self.scheduler.trim(choice.request)
        for choice, (token_ids, text, reason) in zip(choices, news, strict=True):
            if reason is None:
                self._deliver(choice.request, len(token_ids), text, None)
            else:
                self._finish(choice.request, reason, len(token_ids), text)

    def _extend(self, choice: Choice) -> tuple[list[int], str, str | None]:
        """Give a request its next tokens; return those that were kept, the text to show, and why the output ends."""
        request, chosen = choice.request, choice.verification
        is_decode = request.num_output_tokens > 0
        count, text, reason = request.extend(chosen.token_ids)
        if request.logprobs is not None:
            request.logprobs += choice.logprobs[:count]
        if choice.draft:
            # What stands behind the end of an output was accepted, and is not kept.
            num_accepted = min(chosen.num_accepted, count)
            request.num_computed_tokens += num_accepted
            self.recorder.verify(request.sample_id, choice.draft, chosen, num_accepted)
        if is_decode:
            self.speculator.record(request, len(choice.draft), chosen.num_accepted, count)
        request.metrics.num_output_tokens = request.num_output_tokens
        if request.metrics.first_token_s is None:
            request.metrics.first_token_s = time.perf_counter()
        return chosen.token_ids[:count], text, reason

    def _fork(self, parent: Request) -> None:
        """The prompt is computed: let its other answers begin, each with the parent's blocks."""
        children, parent.unborn = parent.unborn, []
        for request in (parent, *children):
            request.is_forked = True
        for child in children:
            child.num_computed_tokens = child.metrics.num_cached_tokens = parent.num_computed_tokens
            child.num_full_blocks = parent.num_full_blocks
            self.scheduler.fork(parent, child)
            self.speculator.fork(parent, child)

    def _cache_full_blocks(self, request: Request) -> None:
        """Let later requests find what has become full in this step."""
        num_tokens = self.speculator.num_computed_tokens(request)
        if num_tokens // self.cache.block_size > request.num_full_blocks:
            request.num_full_blocks = num_tokens // self.cache.block_size
            found = self.cache.cache_full_blocks(
                request.sample_id, request.token_ids, request.params.cache_salt, num_tokens
            )
            self.recorder.cache_blocks(request.sample_id, found)

    def _fail(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._finish(row.request, "error")

    def _finish(self, request: Request, reason: str, num_new_tokens: int = 0, text: str = "") -> None:
        """The one way out, for every reason: leave the queues, free the memory, deliver the last output."""
        del self._requests[request.sample_id]
        self.scheduler.finish(request, reason)
        self.speculator.forget(request)
        request.metrics.finish_s = time.perf_counter()
        self._deliver(request, num_new_tokens, text + request.detokenizer.flush(), reason)
        unborn, request.unborn = request.unborn, []
        for child in unborn:
            self._finish(child, reason)

    def _deliver(self, request: Request, num_new_tokens: int, text: str, reason: str | None) -> None:
        self._undelivered.append(request.output(num_new_tokens, text, reason))
