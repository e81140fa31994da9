"""One decode step of one request against the sum of the step's linear layers, the least that it must compute.

The same layers are timed twice: as the engine holds them, and as oneDNN packs float32, which is what PyTorch offers a
CPU. What the step takes on top is attention, norms, sampling and all bookkeeping.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.bench import Bench, interleave, median, prompts, ratios
from benchmarks.report import Measurement, Result, Target
from servelab.engine import Engine, EngineConfig
from servelab.ops.linear import Linear, can_use_onednn
from servelab.sampling import SamplingParams

BAR = 1.6
CONTEXT = 100
REPEATS = 10  # of a step, or of all layers, for one sample


def run(bench: Bench) -> Result:
    layers = [module for module in bench.model.network.modules() if isinstance(module, Linear)]
    samplers = {
        "decode step": decode_sampler(bench),
        "its linear layers": layer_sampler([layer.forward for layer in layers], layers),
    }
    packed = [onednn_layer(layer) for layer in layers if can_use_onednn(layer.dense_weight())]
    if len(packed) == len(layers):
        samplers["its linear layers in oneDNN"] = layer_sampler(packed, layers)
    samples = interleave(samplers, rounds=2 * bench.rounds, tell=bench.tell)
    measurements = [Measurement(name, "ms", tuple(values)) for name, values in samples.items()]
    targets = []
    for name in list(samples)[1:]:
        relative = ratios(samples["decode step"], samples[name])
        measurements.append(Measurement(f"decode step against {name}", "x", tuple(relative)))
        targets.append(Target(f"decode step against {name}", median(relative), "<=", BAR))
    settings = {"requests": 1, "context": CONTEXT, "threads": bench.threads, "rounds": 2 * bench.rounds}
    return Result(tuple(measurements), tuple(targets), settings)


def decode_sampler(bench: Bench) -> Callable[[], float]:
    """Milliseconds of one step of an engine with one request that decodes."""
    num_tokens = CONTEXT + 1 + REPEATS * (2 * bench.rounds + 1)
    engine = Engine(bench.model, EngineConfig(num_blocks=-(-num_tokens // 16), max_num_seqs=1, prefix_caching=False))
    (prompt,) = prompts(bench.model, 1, CONTEXT)
    engine.add_request(prompt, SamplingParams(max_tokens=num_tokens - CONTEXT, ignore_eos=True))
    for _ in range(REPEATS):
        engine.step()
    return lambda: milliseconds(engine.step)


def layer_sampler(forwards: Sequence[Callable[[Tensor], Tensor]], layers: Sequence[Linear]) -> Callable[[], float]:
    """Milliseconds of all layers, one after the other, with one token each."""
    inputs = [torch.randn(1, layer.in_features) for layer in layers]

    def compute() -> None:
        for forward, x in zip(forwards, inputs, strict=True):
            forward(x)

    def sample() -> float:
        with torch.inference_mode():
            return milliseconds(compute)

    return sample


def onednn_layer(layer: Linear) -> Callable[[Tensor], Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.dense_weight().detach(), None)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, layer.bias, "none", [], "")


def milliseconds(work: Callable[[], object]) -> float:
    """The median of `REPEATS` calls."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return median(times)
