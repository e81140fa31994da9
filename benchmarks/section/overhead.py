"""What a step costs beside the network: the scheduler alone with 256 running requests, and everything with 16.

The scheduler never sees a tensor, so a toy network stands behind it. All work outside the model is the time of a step
less the time inside `Model.hidden` and `Model.project`: scheduling, batch metadata, sampling, text, trace, outputs.
"""

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from benchmarks.bench import Bench, median, prompts
from benchmarks.report import Measurement, Result, Target
from servelab.engine import Engine, EngineConfig
from servelab.model import Model, toy_model
from servelab.sampling import SamplingParams

SCHEDULER_BAR_MS, OUTSIDE_BAR_MS = 0.4, 1.5


def run(bench: Bench, many: int = 256, few: int = 16, steps: int = 64, context: int = 100) -> Result:
    bench.tell(f"the scheduler with {many} running requests")
    schedule_ms = schedule_times(many, steps)
    bench.tell(f"everything outside the model with {few} requests")
    outside_ms, step_ms = outside_times(bench.model, few, context, steps)
    measurements = (
        Measurement("schedule", "ms", tuple(schedule_ms), {"requests": many}),
        Measurement("outside the model", "ms", tuple(outside_ms), {"requests": few, "context": context}),
        Measurement("step", "ms", tuple(step_ms), {"requests": few, "context": context}),
    )
    targets = (
        Target(f"schedule, {many} running requests", median(schedule_ms), "<=", SCHEDULER_BAR_MS, "ms"),
        Target(f"outside the model, {few} requests", median(outside_ms), "<=", OUTSIDE_BAR_MS, "ms"),
    )
    return Result(measurements, targets, {"steps": steps, "threads": bench.threads})


def schedule_times(num_requests: int, steps: int) -> list[float]:
    """Milliseconds of `Scheduler.schedule` in each step. Prompts of 1 to 16 tokens: some need a block in every step."""
    max_tokens = steps + 32
    config = EngineConfig(
        num_blocks=num_requests * (2 + max_tokens // 16),
        max_num_seqs=num_requests,
        max_num_batched_tokens=32 * num_requests,
        prefix_caching=False,
    )
    engine = Engine(toy_model(), config)
    for number in range(num_requests):
        engine.add_request([1] * (1 + number % 16), SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    engine.step()
    seconds: list[float] = []
    with patch.object(engine.scheduler, "schedule", timed(engine.scheduler.schedule, seconds)):
        for _ in range(steps):
            engine.step()
    return [1e3 * second for second in seconds]


def outside_times(model: Model, num_requests: int, context: int, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each decoding step: outside the model, and in all."""
    num_blocks = num_requests * (1 + (context + steps + 8) // 16)
    engine = Engine(model, EngineConfig(num_blocks=num_blocks, max_num_seqs=num_requests, prefix_caching=True))
    for prompt in prompts(model, num_requests, context):
        engine.add_request(prompt, SamplingParams(max_tokens=steps + 8, ignore_eos=True))
    while engine.scheduler.waiting or any(request.num_output_tokens == 0 for request in engine.scheduler.running):
        engine.step()
    inside: list[float] = []
    outside_ms, step_ms = [], []
    with (
        patch.object(Model, "hidden", timed(Model.hidden, inside)),
        patch.object(Model, "project", timed(Model.project, inside)),
    ):
        for _ in range(steps):
            inside.clear()
            begin = time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - begin
            step_ms.append(1e3 * seconds)
            outside_ms.append(1e3 * (seconds - sum(inside)))
    return outside_ms, step_ms


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The same function, which notes how long each call took."""

    def call(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds.append(time.perf_counter() - begin)

    return call
