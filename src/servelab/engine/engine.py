"""`Engine`: requests in, tokens out.

One step: the scheduler picks rows, the runner computes them, each row that caught up gets its next token, and whoever
is done leaves and gives everything back.
"""

import itertools
import time
from collections.abc import Sequence

from torch import Tensor

from servelab.cache import ContiguousCacheManager, KVCacheManager, KVStorage
from servelab.device import machine_name
from servelab.engine.admission import (
    check_length,
    check_params,
    check_parts,
    check_prompt,
    check_prompts,
    check_request_id,
)
from servelab.engine.config import EngineConfig
from servelab.engine.detokenizer import Detokenizer
from servelab.engine.interrupt import uninterrupted
from servelab.engine.memory import length_limit, pool_blocks
from servelab.engine.output import RequestMetrics, RequestOutput
from servelab.engine.recorder import CacheManager, Recorder
from servelab.engine.request import Request
from servelab.engine.runner import Runner
from servelab.engine.scheduler import Row, Scheduler
from servelab.model import Model
from servelab.sampling import SamplingParams, make_generator, sample
from servelab.trace import Trace, token_texts


class Engine:
    """Serves many requests with one model. Not thread-safe: one thread calls it.

    cache: the block tables (`KVCacheManager`, or `ContiguousCacheManager`); storage: the tensors behind them.
    max_model_len: prompt and output tokens of one request at most. trace: what happened so far, step by step.
    """

    def __init__(self, model: Model, config: EngineConfig | None = None) -> None:
        self.model, self.config = check_parts(model, config)
        num_blocks, block_size = pool_blocks(model, self.config), self.config.block_size
        self.max_model_len = length_limit(model, self.config, num_blocks * block_size)
        self.cache: CacheManager
        if self.config.kv_cache == "paged":
            self.cache = KVCacheManager(num_blocks, block_size)
        else:  # a pool of the same size, in units of one slot
            num_blocks, block_size = num_blocks * block_size, 1
            self.cache = ContiguousCacheManager(num_blocks, self.config.reserve, self.max_model_len)
        shape = (model.config.num_layers, num_blocks, block_size, model.config.num_kv_heads, model.config.head_dim)
        self.storage = KVStorage(*shape, dtype=model.dtype, device=model.device)
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
        self.recorder = Recorder(self.trace, self.cache)
        self.scheduler = Scheduler(self.config, self.cache, self.recorder)
        self.runner = Runner(model, self.storage, self.cache)
        self._requests: dict[str, Request] = {}
        self._undelivered: list[RequestOutput] = []
        self._numbers = itertools.count()

    def add_request(
        self, prompt: str | list[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> str:
        """Put a request at the end of the queue and return its id.

        prompt: text, or token ids. params: default `SamplingParams()`. request_id: default "0", "1", ...
        Raises ValueError, and changes nothing, for an empty prompt, ids outside the vocabulary, an id that an
        unfinished request has, or prompt + max_tokens beyond `max_model_len` or the whole KV pool.
        """
        request = self._new_request(prompt, params, request_id)
        self._enqueue(request)
        return request.request_id

    def step(self) -> list[RequestOutput]:
        """Compute one step; return an output for each request that got a token or ended since the last step.

        When the forward pass or the sampling raises, the requests of this step end with "error", the exception
        goes on to the caller, and the engine goes on with the others: the next `step` returns their outputs.
        Interrupted (KeyboardInterrupt), a step may simply be repeated.
        """
        started = time.perf_counter()
        try:
            with uninterrupted():
                rows = self.scheduler.schedule()
            if rows:
                self._compute(rows)
        finally:
            self.recorder.close_step(time.perf_counter() - started)
        outputs, self._undelivered = self._undelivered, []
        return outputs

    def abort(self, request_id: str) -> None:
        """End a request now and free what it holds; the next `step` returns its output, with reason "abort".

        An id that is finished or unknown is left alone: a client may go away after its last token. Raises ValueError
        for what cannot be an id.
        """
        if not isinstance(request_id, str):
            raise ValueError(f"expected request_id as a str, got {request_id!r}")
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, "abort")

    def has_unfinished(self) -> bool:
        """Whether `step` still has something to compute or to tell."""
        return bool(self._requests or self._undelivered)

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Run all prompts to their end; return their final outputs in the order of the prompts.

        params: one for all, or one for each. Requests that were added before run beside them; the next `step`
        returns what they produced. Raises ValueError, and runs nothing, when any prompt cannot be admitted. When it
        is interrupted or a step fails, its requests are aborted and the engine is as if they had never come.
        """
        requests = [self._new_request(*pair) for pair in check_prompts(prompts, params)]
        own = {request.request_id: request for request in requests}
        final: dict[str, RequestOutput] = {}
        others: list[RequestOutput] = []
        try:
            with uninterrupted():
                for request in requests:
                    self._enqueue(request)
            while len(final) < len(own):
                for output in self.step():
                    if output.request_id not in own:
                        others.append(output)
                    elif output.finish_reason is not None:
                        final[output.request_id] = output
        finally:
            with uninterrupted():
                for request_id in own:
                    self.abort(request_id)
                undelivered = others + self._undelivered
                self._undelivered = [output for output in undelivered if output.request_id not in own]
        return [final[request.request_id] for request in requests]

    def _new_request(self, prompt: object, params: object, request_id: str | None = None) -> Request:
        """A request that may enter; nothing is changed yet. Raises ValueError as `add_request` does."""
        token_ids = check_prompt(prompt, self.model)
        checked = check_params(params, self.model)
        check_length(len(token_ids), checked.max_tokens, self.max_model_len, self.cache.num_slots)
        if request_id is not None:
            check_request_id(request_id, self._requests)
        else:
            # Nor a name whose last output is still to be told: it would be taken for this request's.
            taken = self._requests.keys() | {output.request_id for output in self._undelivered}
            request_id = next(name for name in map(str, self._numbers) if name not in taken)
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=checked,
            generator=make_generator(checked.seed, self.model.device),
            detokenizer=Detokenizer(self.model.tokenizer.decode),
            metrics=RequestMetrics(arrival_s=time.perf_counter(), num_prompt_tokens=len(token_ids)),
        )

    def _enqueue(self, request: Request) -> None:
        texts = self._token_texts(request.prompt_token_ids)
        self._requests[request.request_id] = request
        self.recorder.arrive(request.request_id, request.prompt_token_ids, request.params.max_tokens, texts)
        self.scheduler.add(request)

    def _compute(self, rows: list[Row]) -> None:
        """Run the rows. What they brought is written down as a whole, or, after an exception, not at all."""
        try:
            logits = self.runner.run(rows)
        except Exception:
            self._fail(rows)
            raise
        with uninterrupted():
            self._advance(rows, logits)

    def _advance(self, rows: list[Row], logits: Tensor) -> None:
        """Count the rows as computed, and give those that caught up their next token. logits: [N, V] of these."""
        ready = [request for request, num_tokens in rows if num_tokens == request.num_uncomputed_tokens]
        try:
            tokens = sample(logits, [request.params for request in ready], [request.generator for request in ready])
        except Exception:
            self._fail(rows)
            raise
        for request, num_tokens in rows:
            request.num_computed_tokens += num_tokens
        self.recorder.compute((request.request_id, num_tokens) for request, num_tokens in rows)
        texts = self._token_texts(tokens)
        self.recorder.emit(zip([request.request_id for request in ready], tokens, texts, strict=True))
        for request, token_id in zip(ready, tokens, strict=True):
            self._append(request, token_id)

    def _token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """What widgets show of each token: "" where it has no text of its own."""
        pieces = []
        for token_id in token_ids:
            try:
                pieces.append(self.model.tokenizer.token_text(token_id))
            except ValueError:  # many models have rows beyond their tokenizer's last id, to fill a tile
                pieces.append("")
        return token_texts(pieces)

    def _fail(self, rows: list[Row]) -> None:
        for request, _ in rows:
            self._finish(request, "error")

    def _append(self, request: Request, token_id: int) -> None:
        """Give a request its next token, and end it if this was the last."""
        request.output_token_ids.append(token_id)
        request.metrics.num_output_tokens += 1
        if request.metrics.first_token_s is None:
            request.metrics.first_token_s = time.perf_counter()
        reason = self._end_reason(request, token_id)
        text = "" if reason == "stop" else request.detokenizer.add(token_id)
        if reason is None:
            self._deliver(request, [token_id], text, None)
        else:
            self._finish(request, reason, [token_id], text)

    def _end_reason(self, request: Request, token_id: int) -> str | None:
        is_end = token_id in self.model.tokenizer.eos_token_ids and not request.params.ignore_eos
        if is_end or token_id in request.params.stop_token_ids:
            return "stop"
        return "length" if len(request.output_token_ids) == request.params.max_tokens else None

    def _finish(self, request: Request, reason: str, delta: Sequence[int] = (), text: str = "") -> None:
        """The one way out, for every reason: leave the queues, free the memory, deliver the last output."""
        del self._requests[request.request_id]
        self.scheduler.finish(request, reason)
        request.metrics.finish_s = time.perf_counter()
        self._deliver(request, delta, text + request.detokenizer.flush(), reason)

    def _deliver(self, request: Request, delta: Sequence[int], text: str, reason: str | None) -> None:
        self._undelivered.append(
            RequestOutput(
                request_id=request.request_id,
                index=0,
                token_ids=list(request.output_token_ids),
                text=request.detokenizer.text,
                delta_token_ids=list(delta),
                delta_text=text,
                finish_reason=reason,
                metrics=request.metrics,
            )
        )
