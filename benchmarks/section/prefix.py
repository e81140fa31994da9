"""Time to the first token behind a shared system prompt, with the prefix cache off and on.

Each request asks something else behind the same 1,000 tokens. Without the cache all of them are computed; with it only
what is behind the last full block that an earlier request left.
"""

from collections.abc import Callable

from benchmarks.bench import Bench, interleave, median, prompts, ratios
from benchmarks.report import Measurement, Result, Target
from servelab.engine import Engine, EngineConfig
from servelab.sampling import SamplingParams

BAR = 15.0
QUESTION_TOKENS = 24


def run(bench: Bench, system_tokens: int = 1000) -> Result:
    samples = interleave(
        {name: ttft_sampler(bench, system_tokens, name == "on") for name in ("off", "on")},
        rounds=bench.rounds,
        tell=lambda text: bench.tell(f"prefix cache {text}"),
    )
    measurements = [
        Measurement("time to first token", "ms", tuple(values), {"prefix_caching": name})
        for name, values in samples.items()
    ]
    faster = ratios(samples["off"], samples["on"])
    measurements.append(Measurement("time to first token, off against on", "x", tuple(faster)))
    settings = {"system_tokens": system_tokens, "question_tokens": QUESTION_TOKENS, "threads": bench.threads}
    target = Target("time to first token, prefix cache off against on", median(faster), ">=", BAR)
    return Result(tuple(measurements), (target,), settings)


def ttft_sampler(bench: Bench, system_tokens: int, prefix_caching: bool) -> Callable[[], float]:
    """Milliseconds from the arrival of a request to its first token; one question has been asked before."""
    system, *questions = prompts(bench.model, 2 + bench.rounds, system_tokens)
    num_blocks = 2 * (system_tokens + QUESTION_TOKENS + 17) // 16 + 1
    engine = Engine(bench.model, EngineConfig(num_blocks=num_blocks, prefix_caching=prefix_caching))

    def sample() -> float:
        question = questions.pop()[:QUESTION_TOKENS]
        (output,) = engine.generate([system + question], SamplingParams(max_tokens=1, ignore_eos=True))
        assert output.metrics.ttft_s is not None
        return 1e3 * output.metrics.ttft_s

    sample()
    return sample
