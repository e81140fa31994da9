"""Speculation against plain decoding: who wins how much at one request, and from which batch size each loses.

Greedy. Two sets of prompts: ordinary questions, and tasks whose answer repeats their text (extract, edit, summarise).
Speed is output tokens over the time from the first to the last token, all requests of a batch arriving together. The
draft model is the target with layers left out: it drafts badly, and shows that a poor draft loses.
"""

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bench import Bench, interleave, median, ratios
from benchmarks.report import Measurement, Result, Target
from servelab.engine import Engine, EngineConfig
from servelab.model import Model, skip_layers
from servelab.sampling import SamplingParams
from servelab.speculative import DraftHead, DraftModel, NGram, Speculation

PROMPTS = Path(__file__).resolve().parents[1] / "prompts"
BATCH_SIZES = (1, 2, 4, 8, 16)
OUTPUT_TOKENS = 96
# Requests of a lane in one round, at least: how much a draft brings differs from prompt to prompt.
REQUESTS = 8
PLAIN = "plain"
BARS = {("ordinary", "draft head, adaptive"): 1.3, ("ngram_tasks", "n-gram, adaptive"): 2.0}

Makers = dict[str, Callable[[Model], Speculation]]

ORDINARY: Makers = {
    "draft head": lambda model: DraftHead(k=1),
    "draft head, adaptive": lambda model: DraftHead(k=4, adaptive=True),
    "n-gram": lambda model: NGram(k=4),
    "draft model": lambda model: DraftModel(without_layers(model), k=4),
}
NGRAM_TASKS: Makers = {
    "n-gram": lambda model: NGram(k=8),
    "n-gram, adaptive": lambda model: NGram(k=8, adaptive=True),
}


def run(
    bench: Bench,
    makers: dict[str, Makers] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    output_tokens: int = OUTPUT_TOKENS,
) -> Result:
    """makers: text -> proposer -> how it is made."""
    makers = makers or {"ordinary": ORDINARY, "ngram_tasks": NGRAM_TASKS}
    batch_sizes = batch_sizes[::3] if bench.quick else batch_sizes
    measurements, targets = [], []
    for text, proposers in makers.items():
        prompts = read_prompts(bench.model, text)
        for batch_size in batch_sizes:
            lanes = {
                name: Lane(bench.model, make, prompts, batch_size, output_tokens)
                for name, make in {PLAIN: lambda model: None, **proposers}.items()
            }
            speeds = interleave(
                {name: lane.speed for name, lane in lanes.items()},
                bench.rounds,
                functools.partial(tell_batch, bench, text, batch_size),
            )
            for name, lane in lanes.items():
                case = {"text": text, "proposer": name, "batch_size": batch_size}
                measurements.append(Measurement("decode", "tokens/s", tuple(speeds[name]), case))
                if name == PLAIN:
                    continue
                faster = ratios(speeds[name], speeds[PLAIN])
                metrics = lane.engine.speculation
                measurements += [
                    Measurement("speed against plain", "x", tuple(faster), case),
                    Measurement("acceptance rate", "share", (metrics.acceptance_rate,), case),
                    Measurement("tokens per target step", "tokens", (metrics.tokens_per_step,), case),
                    Measurement("same tokens as plain", "share", (lane.agreement(lanes[PLAIN]),), case),
                ]
                bar = BARS.get((text, name))
                if bar is not None and batch_size == 1:
                    targets.append(Target(f"{name} on {text} text, 1 request", median(faster), ">=", bar))
    settings = {"output_tokens": output_tokens, "threads": bench.threads, "rounds": bench.rounds}
    return Result(tuple(measurements), tuple(targets), settings)


def tell_batch(bench: Bench, text: str, batch_size: int, what: str) -> None:
    bench.tell(f"{text} text, batch of {batch_size}: {what}")


class Lane:
    """One engine, plain or with a proposer: serves the prompts in batches of `batch_size`, the next ones each time."""

    def __init__(
        self,
        model: Model,
        make: Callable[[Model], Speculation | None],
        prompts: Sequence[list[int]],
        batch_size: int,
        output_tokens: int,
    ) -> None:
        self.prompts, self.batch_size, self.output_tokens = prompts, batch_size, output_tokens
        longest = max(map(len, prompts)) + output_tokens
        config = EngineConfig(
            num_blocks=batch_size * -(-longest // 16),
            max_num_seqs=batch_size,
            max_num_batched_tokens=2048,
            prefix_caching=False,
            speculative=make(model),
        )
        self.engine = Engine(model, config)
        self.next = 0
        self.outputs: list[list[int]] = []
        self.serve(prompts[:batch_size])  # what is compiled or loaded on first use is not measured
        self.outputs.clear()

    def speed(self) -> float:
        """Decoded tokens per second over at least `REQUESTS` requests."""
        tokens, seconds = 0, 0.0
        for _ in range(max(1, REQUESTS // self.batch_size)):
            batch = [self.prompts[(self.next + i) % len(self.prompts)] for i in range(self.batch_size)]
            self.next += self.batch_size
            new_tokens, new_seconds = self.serve(batch)
            tokens, seconds = tokens + new_tokens, seconds + new_seconds
        return tokens / seconds

    def serve(self, batch: Sequence[list[int]]) -> tuple[int, float]:
        """Tokens after the first of each request, and seconds from the step that brought the last first token."""
        params = SamplingParams(max_tokens=self.output_tokens)
        ids = [self.engine.add_request(prompt, params) for prompt in batch]
        outputs: dict[str, list[int]] = {}
        while len(outputs) < len(ids):
            outputs |= {output.request_id: output.token_ids for output in self.engine.step()}
        before, begin = sum(map(len, outputs.values())), time.perf_counter()
        while self.engine.has_unfinished():
            outputs |= {output.request_id: output.token_ids for output in self.engine.step()}
        seconds = time.perf_counter() - begin
        self.outputs += [outputs[request_id] for request_id in ids]
        return sum(map(len, outputs.values())) - before, seconds

    def agreement(self, plain: "Lane") -> float:
        """The share of requests whose output is the same as without speculation, token for token."""
        pairs = list(zip(self.outputs, plain.outputs, strict=True))
        return sum(own == other for own, other in pairs) / len(pairs)


def without_layers(model: Model) -> Model:
    """The target with about a quarter of its layers left out, the middle ones: 22 of 30."""
    num_layers = model.config.num_layers
    left_out = max(1, round(0.27 * num_layers))
    first = (num_layers - left_out) // 2
    return skip_layers(model, [layer for layer in range(num_layers) if not first <= layer < first + left_out])


def read_prompts(model: Model, text: str) -> list[list[int]]:
    """Token ids of the prompts in `prompts/<text>.json`, as a chat."""
    entries = json.loads((PROMPTS / f"{text}.json").read_text(encoding="utf-8"))["prompts"]
    texts = [model.tokenizer.chat([{"role": "user", "content": entry["prompt"]}]) for entry in entries]
    return [model.tokenizer.encode(content) for content in texts]
