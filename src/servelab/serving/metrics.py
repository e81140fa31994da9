"""What the server did, in Prometheus' form, under vLLM's names where they mean the same.

Counters and histograms grow as outputs come; gauges say what the engine was at after its last step. So a dashboard made
for vLLM shows this server too. https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from collections.abc import Iterable, Sequence
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from servelab.engine import Engine, RequestOutput

LABELS = ("model_name", "engine")
TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
TOKEN_S = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
REASONS = ("stop", "length", "abort", "error")


class ServerMetrics:
    """Counts of one engine. `hear` is called in the engine's thread, `text` in any."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self.engine = engine
        self.registry = CollectorRegistry()
        label = {"model_name": model_name, "engine": "0"}

        def counter(name: str, what: str) -> Counter:
            return Counter(f"vllm:{name}", what, LABELS, registry=self.registry).labels(**label)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"vllm:{name}", what, LABELS, registry=self.registry).labels(**label)

        def histogram(name: str, what: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", what, LABELS, buckets=buckets, registry=self.registry).labels(**label)

        self.running = gauge("num_requests_running", "Requests in the running batch.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait for a seat or for memory.")
        self.kv_usage = gauge("kv_cache_usage_perc", "Share of the KV pool that requests hold, 1 for all.")
        self.preemptions = counter("num_preemptions", "Requests that were preempted.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of the requests that began to answer.")
        self.generation_tokens = counter("generation_tokens", "Output tokens.")
        self.cache_queries = counter("prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache.")
        self.cache_hits = counter("prefix_cache_hits", "Prompt tokens that were found there.")
        self.drafts = counter("spec_decode_num_drafts", "Drafts that were verified.")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens of these drafts.")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Those that were accepted.")
        self.ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", TTFT_S)
        self.itl = histogram("inter_token_latency_seconds", "Between outputs of a request, by token.", TOKEN_S)
        self.tpot = histogram("request_time_per_output_token_seconds", "Mean after the first token.", TOKEN_S)
        self.latency = histogram("e2e_request_latency_seconds", "From arrival to the last token.", REQUEST_S)
        success = Counter(
            "vllm:request_success", "Requests by reason.", (*LABELS, "finished_reason"), registry=self.registry
        )
        self.success = {reason: success.labels(**label, finished_reason=reason) for reason in REASONS}
        self._last: dict[tuple[str, int], float] = {}  # when each answer was last heard of
        self._speculation = (0, 0, 0)

    def hear(self, outputs: Iterable[RequestOutput]) -> None:
        """Count what a step brought, and look at what the engine is at."""
        now = perf_counter()
        for output in outputs:
            name, metrics, new = (output.request_id, output.index), output.metrics, len(output.delta_token_ids)
            if new:
                self.generation_tokens.inc(new)
                before = self._last.get(name)
                if before is None:
                    self._begin(output)
                else:
                    for _ in range(new):
                        self.itl.observe((now - before) / new)
                self._last[name] = now
            if output.finish_reason is not None:
                self._last.pop(name, None)
                self.success[output.finish_reason].inc()
                self.preemptions.inc(metrics.num_preemptions)
                self.latency.observe(now - metrics.arrival_s)
                if metrics.tpot_s is not None:
                    self.tpot.observe(metrics.tpot_s)
        self._look()

    def _begin(self, output: RequestOutput) -> None:
        metrics = output.metrics
        if metrics.ttft_s is not None:
            self.ttft.observe(metrics.ttft_s)
        if output.index == 0:  # the other answers to a prompt are forked from the first
            self.prompt_tokens.inc(metrics.num_prompt_tokens)
            if self.engine.config.prefix_caching:
                self.cache_queries.inc(metrics.num_prompt_tokens)
                self.cache_hits.inc(metrics.num_cached_tokens)

    def _look(self) -> None:
        scheduler, cache, speculation = self.engine.scheduler, self.engine.cache, self.engine.speculation
        self.running.set(len(scheduler.running))
        self.waiting.set(len(scheduler.waiting))
        self.kv_usage.set(1 - cache.num_free * cache.block_size / cache.num_slots)
        counts = (sum(speculation.drafted_at[:1]), speculation.drafted, speculation.accepted)
        for counter, count, before in zip(
            (self.drafts, self.draft_tokens, self.accepted_tokens), counts, self._speculation, strict=True
        ):
            counter.inc(count - before)
        self._speculation = counts

    def text(self) -> bytes:
        return generate_latest(self.registry)
