"""Continuous against static batching on requests of mixed lengths, all of them waiting from the start.

Two mixes. "one in 16 is long": answers of 8 to 32 tokens, and a few of 384 to 512, as a chat has them. "lognormal": the
committed workload at a mean of 80 tokens, where prompts are half of the work and alike for both. A
static batch waits for its longest request; the engine computes live rows only, so a thin step is cheaper than a full
one, and static batching is not made to look worse than it is.
"""

import random
import time
from collections.abc import Sequence

from benchmarks.bench import Bench, interleave, median, prompts, ratios
from benchmarks.report import Measurement, Result, Target
from servelab.costs import RequestLength, workload
from servelab.engine import Engine, EngineConfig
from servelab.sampling import SamplingParams

SEATS = 16
BAR = 2.0
HELD_AGAINST = "one in 16 is long"


def run(bench: Bench, mixes: dict[str, list[RequestLength]] | None = None) -> Result:
    mixes = mixes or default_mixes(64 if bench.quick else 96)
    measurements, targets = [], []
    for mix, lengths in mixes.items():
        samplers = {
            scheduling: lambda scheduling=scheduling, lengths=lengths: serve(bench, scheduling, lengths)
            for scheduling in ("continuous", "static")
        }
        speeds = interleave(samplers, max(1, bench.rounds // 2), lambda text, mix=mix: bench.tell(f"{mix}: {text}"))
        for scheduling, samples in speeds.items():
            case = {"mix": mix, "scheduling": scheduling}
            measurements.append(Measurement("output tokens", "tokens/s", tuple(samples), case))
        faster = ratios(speeds["continuous"], speeds["static"])
        measurements.append(Measurement("continuous against static", "x", tuple(faster), {"mix": mix}))
        if mix == HELD_AGAINST:
            targets.append(Target(f"continuous against static, {mix}", median(faster), ">=", BAR))
    settings = {"seats": SEATS, "requests": len(lengths), "threads": bench.threads}
    return Result(tuple(measurements), tuple(targets), settings)


def default_mixes(num_requests: int) -> dict[str, list[RequestLength]]:
    """Name -> lengths in order of arrival, the same on every machine."""
    rng = random.Random(0)
    outputs = [rng.randint(384, 512) if number % 16 == 3 else rng.randint(8, 32) for number in range(num_requests)]
    return {
        HELD_AGAINST: [RequestLength(rng.randint(8, 32), output_tokens) for output_tokens in outputs],
        "lognormal": workload(num_requests, mean_tokens=80, max_tokens=512),
    }


def serve(bench: Bench, scheduling: str, lengths: Sequence[RequestLength]) -> float:
    """Output tokens per second over the whole workload, prefill included."""
    longest = max(length.num_tokens for length in lengths)
    config = EngineConfig(
        scheduling=scheduling, max_num_seqs=SEATS, num_blocks=SEATS * -(-longest // 16), prefix_caching=False
    )
    engine = Engine(bench.model, config)
    texts = prompts(bench.model, len(lengths), max(length.prompt_tokens for length in lengths))
    begin = time.perf_counter()
    for text, length in zip(texts, lengths, strict=True):
        engine.add_request(
            text[: length.prompt_tokens], SamplingParams(max_tokens=length.output_tokens, ignore_eos=True)
        )
    while engine.has_unfinished():
        engine.step()
    return sum(length.output_tokens for length in lengths) / (time.perf_counter() - begin)
