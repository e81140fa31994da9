"""Tokens per second beside transformers and vLLM: the same prompts, lengths, weights and dtype.

Every engine computes each prompt (no prefix caching) under the same budget of tokens a step, greedy, and no token ends
an output. Prefill and decode are told apart: prefill is the time until the last request has its first token; decode is
timed after that, over steps in which all requests decode. The engines take turns round by round, so that a noisy
minute hits all of them.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks.bench import Bench, median, prompts, ratios
from benchmarks.contender.process import OURS, VLLM_ENVIRONMENT, ContenderFailed, Process, contenders
from benchmarks.contender.protocol import Setup, Task, Timing
from benchmarks.report import Measurement, Result, Target
from servelab.model import prepare_model
from servelab.model.catalog import WHEELS

NAMES = (OURS, "vLLM", "transformers static", "transformers continuous")
DECODE_BAR = {"vLLM": 1.25}
SLOW = "transformers continuous"  # seconds a step on a CPU: it takes part in the small loads, with few steps
SLOW_TOKENS, SLOW_STEPS = 400, 8


@dataclass(frozen=True)
class Load:
    """requests: how many arrive together. context: prompt tokens of each."""

    requests: int
    context: int


LOADS = tuple(Load(requests, context) for context in (100, 1500) for requests in (1, 4, 16))
QUICK_LOADS = (Load(1, 100), Load(4, 100))


def run(
    bench: Bench,
    names: Sequence[str] = NAMES,
    loads: Sequence[Load] | None = None,
    decode_steps: int = 32,
    processes: Sequence[Process] | None = None,
) -> Result:
    """names: who takes part. processes: instead of those that `names` stands for. Raises ContenderFailed."""
    if loads is None:
        loads = QUICK_LOADS if bench.quick else LOADS
    if processes is None:
        present = [name for name in names if name != "vLLM" or VLLM_ENVIRONMENT.exists()]
        if len(present) < len(names):
            bench.tell("vLLM is left out: it has no environment yet (`make vllm`)")
        processes = contenders(setup(bench), present)
    measurements: list[Measurement] = []
    targets: list[Target] = []
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        for process in processes:
            bench.tell(f"starting {process.name}")
            stack.enter_context(process)
            versions |= process.versions
            process.run(Task(prompts(bench.model, processes[0].setup.max_num_seqs, 32), 4))  # warm
        for load in loads:
            timings = take_turns(bench, processes, load, decode_steps)
            measured, held = judge(load, timings)
            measurements += measured
            targets += held
    settings = {**vars(setup(bench)), "decode_steps": decode_steps, "rounds": bench.rounds, "prefix_caching": "off"}
    return Result(tuple(measurements), tuple(targets), settings | {"model": bench.model_name}, versions)


def setup(bench: Bench) -> Setup:
    """What each contender is started with; the dtype is the one that the model has here."""
    folder = str(prepare_model(bench.model_name)) if bench.model_name in WHEELS else bench.model_name
    longest = min(2048, bench.model.config.max_context)
    return Setup(folder, str(bench.model.dtype).removeprefix("torch."), bench.threads, 16, longest, 2048)


def take_turns(bench: Bench, processes: Sequence[Process], load: Load, decode_steps: int) -> dict[str, list[Timing]]:
    """name -> one timing a round. Each round has prompts of its own."""
    taking_part = [
        process for process in processes if process.name != SLOW or load.requests * load.context <= SLOW_TOKENS
    ]
    timings: dict[str, list[Timing]] = {process.name: [] for process in taking_part}
    texts = prompts(bench.model, load.requests * bench.rounds, load.context)
    for number in range(bench.rounds):
        task = Task(texts[number * load.requests : (number + 1) * load.requests], decode_steps)
        turn = number % len(taking_part)
        for process in taking_part[turn:] + taking_part[:turn]:
            bench.tell(f"{load.requests} x {load.context} tokens, {process.name}, round {number + 1} of {bench.rounds}")
            steps = min(decode_steps, SLOW_STEPS) if process.name == SLOW else decode_steps
            timings[process.name].append(process.run(replace(task, decode_steps=steps)))
    return timings


def judge(load: Load, timings: Mapping[str, Sequence[Timing]]) -> tuple[list[Measurement], list[Target]]:
    """Tokens per second and our ratio to each of the others, from the timings of one load."""
    prefill, decode, measurements = {}, {}, []
    for name, rounds in timings.items():
        case = {"system": name, "requests": load.requests, "context": load.context}
        prefill[name] = [load.requests * load.context / timing.prefill_s for timing in rounds]
        decode[name] = [load.requests * len(timing.step_s) / sum(timing.step_s) for timing in rounds]
        step_ms = tuple(1e3 * step for timing in rounds for step in timing.step_s)
        memory = (max(timing.peak_bytes for timing in rounds) / 1e6,)
        measurements += [
            Measurement("prefill", "tokens/s", tuple(prefill[name]), case),
            Measurement("decode", "tokens/s", tuple(decode[name]), case),
            Measurement("decode step", "ms", step_ms, case),
            Measurement("peak memory so far", "MB", memory, case),
        ]
        if name != OURS and OURS in timings:
            measurements.append(Measurement("same tokens", "share", tuple(agreement(timings[OURS], rounds)), case))
    targets = []
    for other in [name for name in timings if name != OURS and OURS in timings]:
        for what, rates, bar in (("decode", decode, DECODE_BAR.get(other, 1.0)), ("prefill", prefill, 1.0)):
            name = f"{what} against {other}, {load.requests} x {load.context} tokens"
            targets.append(Target(name, median(ratios(rates[OURS], rates[other])), ">=", bar))
    return measurements, targets


def agreement(ours: Sequence[Timing], theirs: Sequence[Timing]) -> list[float]:
    """For each round: the share of output tokens up to which both wrote the same. Near ties part in float32, too."""
    shares = []
    for our, their in zip(ours, theirs, strict=True):
        pairs = [(a, b) for a, b in zip(our.token_ids, their.token_ids, strict=True)]
        lengths = [min(len(a), len(b)) for a, b in pairs]
        same = [next((i for i in range(n) if a[i] != b[i]), n) for (a, b), n in zip(pairs, lengths, strict=True)]
        shares.append(sum(same) / sum(lengths))
    return shares


__all__ = ["ContenderFailed", "Load", "judge", "run"]
