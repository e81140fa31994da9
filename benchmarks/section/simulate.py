"""The simulator held against the engine: one efficiency factor is fitted on one load, and held on all others.

A deployment on paper has the model's own bytes (weights as they are packed, KV as it is stored), this machine's
measured ceilings, the least time that a step spends outside the model (`benchmarks.section.overhead`), and one number
that nobody knows beforehand: the share of the roofline that the engine reaches. It is fitted on the first load. On the
others, tokens per second, mean time to first token and preemptions are compared with what the engine did.

A core waits for what it multiplies next, so that traffic and arithmetic add up (`Deployment.overlap`); what the plain
roofline, the longer of both, would have said with a factor of its own is written down beside it.

Other programs only ever make a step slower, and a ceiling lower. So each load is served in several rounds, in turns,
and the round counts that was disturbed least: whose steps took the least time beside what their own traffic and
products take at the ceilings. (Time alone would not tell: a slow step fills the queue, and the next do more at once.)
The ceilings are the best of as many tries.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bench import Bench, prompts
from benchmarks.report import Measurement, Result, Target
from benchmarks.section.overhead import outside_times
from servelab.costs import Roofline, workload
from servelab.device import machine_name, measured_bandwidth, measured_matmul_flops
from servelab.engine import Engine, EngineConfig
from servelab.model import Model
from servelab.sampling import SamplingParams
from servelab.simulate import (
    Arrival,
    Deployment,
    Simulation,
    arrive_at_once,
    arrive_at_rate,
    equal_lengths,
    fit_efficiency,
    simulate,
)
from servelab.trace import Traffic

BAR = 0.2


@dataclass(frozen=True)
class Load:
    """arrivals: in order of time. config: of engine and simulator alike."""

    name: str
    arrivals: list[Arrival]
    config: EngineConfig


@dataclass(frozen=True)
class Outcome:
    """What one serving of a load came to, real or simulated. seconds: the whole of it.

    busy_s: all steps together; num_bytes, num_tokens: what they read and computed.
    """

    tokens_per_s: float
    ttft_ms: float
    preemptions: float
    seconds: float
    busy_s: float
    num_bytes: int = 0
    num_tokens: int = 0

    def slowness(self, paper: Deployment) -> float:
        """Time of the steps beside that of their traffic and their products with the weights at the ceilings."""
        products = 2 * self.num_tokens * (paper.spec.num_active_parameters - paper.spec.num_embedding_parameters)
        roofline = paper.roofline
        return self.busy_s / (self.num_bytes / roofline.bandwidth_bytes_per_s + products / roofline.flops_per_s)


METRICS = {"tokens_per_s": ("output tokens", "tokens/s"), "ttft_ms": ("mean time to first token", "ms")}
METRICS |= {"preemptions": ("preemptions", "preemptions")}


def default_loads(quick: bool = False) -> list[Load]:
    """The first one is for the fit. The others have other batches, lengths, pools and arrivals."""
    few = 4 if quick else 1
    return [
        Load("fitted: 8 seats, 128 + 64 tokens", at_once(16 // few, 128, 64), config(max_num_seqs=8)),
        Load("16 seats, 48 + 64 tokens", at_once(32 // few, 48, 64), config(max_num_seqs=16)),
        Load("3 seats, 640 + 48 tokens", at_once(6, 640, 48), config(max_num_seqs=3)),
        Load(
            "a pool of 64 blocks, long tail",
            arrive_at_once(workload(24 // few, mean_tokens=144, max_tokens=512, seed=1)),
            config(max_num_seqs=16, num_blocks=64),
        ),
        Load(
            "1.5 arrivals a second (Poisson), long tail",
            arrive_at_rate(workload(20 // few, mean_tokens=160, max_tokens=640, seed=2), 1.5, seed=2),
            config(max_num_seqs=8),
        ),
    ]


def at_once(num_requests: int, prompt_tokens: int, output_tokens: int) -> list[Arrival]:
    return arrive_at_once(equal_lengths(num_requests, prompt_tokens, output_tokens))


def config(**values: int) -> EngineConfig:
    return EngineConfig(**{"num_blocks": 1024, "prefix_caching": False} | values)  # type: ignore[arg-type]


def run(bench: Bench, loads: Sequence[Load] | None = None) -> Result:
    loads = loads or default_loads(bench.quick)
    model = bench.model
    served: dict[str, list[Outcome]] = {load.name: [] for load in loads}
    bandwidths, flops, outside_ms = [], [], []
    serve(model, loads[0])  # compile and warm up
    for number in range(bench.rounds):
        bench.tell(f"ceilings, round {number + 1} of {bench.rounds}")
        bandwidths.append(measured_bandwidth("cpu", again=True))
        flops.append(measured_matmul_flops(device="cpu", again=True))
        outside_ms.append(min(outside_times(model, loads[0].config.max_num_seqs, 32, 16)[0]))
        for load in loads:
            bench.tell(f"{load.name}, round {number + 1} of {bench.rounds}")
            served[load.name].append(serve(model, load))
    roofline = Roofline(max(flops), max(bandwidths), machine_name())
    paper = deployment(model, roofline, min(outside_ms) / 1e3)
    best = {name: min(outcomes, key=lambda outcome: outcome.slowness(paper)) for name, outcomes in served.items()}
    fitted, overlapped = (
        fit_efficiency(one, loads[0].config, loads[0].arrivals, best[loads[0].name].seconds)
        for one in (paper, dataclasses.replace(paper, overlap=True))
    )
    measurements, targets = [], []
    for load in loads:
        simulated, plain = (outcome_of(simulate(one, load.config, load.arrivals)) for one in (fitted, overlapped))
        slowness = tuple(outcome.slowness(paper) for outcome in served[load.name])
        measurements.append(Measurement("steps beside their traffic and products", "x", slowness, {"load": load.name}))
        measurements += compared(load.name, served[load.name], best[load.name], simulated, plain)
        if load is not loads[0]:
            targets += held_against(load.name, best[load.name], simulated)
    settings = {
        "threads": bench.threads,
        "rounds": bench.rounds,
        "best_read_gbps": roofline.bandwidth_bytes_per_s / 1e9,
        "best_matmul_gflops": roofline.flops_per_s / 1e9,
        "bytes_per_parameter": paper.bytes_per_parameter,
        "bytes_per_element": paper.bytes_per_element,
        "overhead_ms": 1e3 * paper.overhead_s,
        "fitted_on": loads[0].name,
        "efficiency": fitted.efficiency,
        "efficiency_with_overlap": overlapped.efficiency,
    }
    return Result(tuple(measurements), tuple(targets), settings)


def deployment(model: Model, roofline: Roofline, overhead_s: float) -> Deployment:
    """The model as this machine holds it, before its efficiency is known."""
    spec = model.spec
    return Deployment(
        spec=spec,
        roofline=roofline,
        bytes_per_parameter=model.weight_bytes / (spec.num_parameters - spec.num_lookup_parameters),
        bytes_per_element=model.dtype.itemsize,
        overlap=False,
        overhead_s=overhead_s,
    )


def serve(model: Model, load: Load) -> Outcome:
    """Let the engine serve a load; each request is added when its time has come, between two steps."""
    engine = Engine(model, load.config)
    texts = prompts(model, len(load.arrivals), max(arrival.prompt_tokens for arrival in load.arrivals))
    to_come = deque(zip(load.arrivals, texts, strict=True))
    start_s: dict[str, float] = {}
    waited_s, finish_s, preemptions = [], 0.0, 0
    begin = time.perf_counter()
    while to_come or engine.has_unfinished():
        now = time.perf_counter() - begin
        if not engine.has_unfinished() and to_come[0][0].time_s > now:
            time.sleep(to_come[0][0].time_s - now)
            continue
        while to_come and to_come[0][0].time_s <= now:
            arrival, text = to_come.popleft()
            params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
            start_s[engine.add_request(text[: arrival.prompt_tokens], params)] = begin + arrival.time_s
        for output in engine.step():
            if output.finish_reason is not None:
                metrics = output.metrics
                if metrics.first_token_s is None or metrics.finish_s is None:
                    raise RuntimeError(f"expected an answer to request {output.request_id}, got {output.finish_reason}")
                waited_s.append(metrics.first_token_s - start_s[output.request_id])
                finish_s, preemptions = metrics.finish_s, preemptions + metrics.num_preemptions
    seconds = finish_s - begin - load.arrivals[0].time_s
    traffic = [event for step in engine.trace.steps for event in step.events if isinstance(event, Traffic)]
    written = sum(event.kv_written_bytes for event in traffic)
    return Outcome(
        tokens_per_s=sum(arrival.output_tokens for arrival in load.arrivals) / seconds,
        ttft_ms=1e3 * sum(waited_s) / len(waited_s),
        preemptions=float(preemptions),
        seconds=seconds,
        busy_s=sum(step.duration_s for step in engine.trace.steps),
        num_bytes=sum(event.weight_bytes + event.kv_read_bytes for event in traffic),
        num_tokens=written // engine.trace.kv_bytes_per_token,
    )


def outcome_of(simulation: Simulation) -> Outcome:
    return Outcome(
        tokens_per_s=simulation.output_tokens_per_s,
        ttft_ms=1e3 * simulation.mean_ttft_s,
        preemptions=float(simulation.num_preemptions),
        seconds=simulation.seconds,
        busy_s=simulation.running.seconds,
    )


def compared(
    name: str, served: Sequence[Outcome], best: Outcome, simulated: Outcome, plain: Outcome
) -> list[Measurement]:
    """Every round of the engine, its best one, and what the simulator says: with the sum, and as a plain roofline."""
    found: list[Measurement] = []
    for metric, (title, unit) in METRICS.items():
        samples = tuple(float(getattr(one, metric)) for one in served)
        real = getattr(best, metric)
        found.append(Measurement(title, unit, samples, {"load": name, "by": "engine"}))
        found.append(Measurement(title, unit, (real,), {"load": name, "by": "engine, best round"}))
        for by, outcome in (("simulator", simulated), ("simulator, plain roofline", plain)):
            value = getattr(outcome, metric)
            found.append(Measurement(title, unit, (value,), {"load": name, "by": by}))
            if real:
                ratio = Measurement(f"{title}, simulated against real", "x", (value / real,), {"load": name, "by": by})
                found.append(ratio)
    return found


def held_against(name: str, real: Outcome, simulated: Outcome) -> list[Target]:
    """How far the simulator is off, as a share of what was measured."""
    return [
        Target(f"{title}, {name}: off by", off(getattr(simulated, metric), getattr(real, metric)), "<=", BAR, "of 1")
        for metric, (title, _) in METRICS.items()
    ]


def off(simulated: float, real: float) -> float:
    """0 when both are the same; of a real count of 0, the simulated count itself."""
    return abs(simulated - real) / (real or 1.0)
