"""How fast: each kernel beside PyTorch's best, and over what the GPU can do. What fails its check is not timed."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernel.check import FORMATS, Bench, paged_inputs, plain_attention
from benchmarks.report import Case, Measurement, Target
from servelab import kernels
from servelab.device import Clock

PREFILL_SHARE, COPY_SHARE, FP8_GAIN = 0.70, 0.85, 1.7  # asked for on a GPU of the H100's class


class Speed:
    """Collects measurements and targets. ceilings: bytes and operations a second that this GPU reaches."""

    def __init__(self, bench: Bench, clock: Clock, bandwidth: float, flops: float) -> None:
        self.bench, self.clock, self.bandwidth, self.flops = bench, clock, bandwidth, flops
        self.measurements: list[Measurement] = []
        self.targets: list[Target] = []

    def time(self, name: str, work: Callable[[], object], case: Case) -> float:
        """Keep the milliseconds of `work`; returns the median in seconds."""
        samples = tuple(1e3 * second for second in self.clock.samples(work))
        self.measurements.append(Measurement(name, "ms", samples, case))
        return self.measurements[-1].median / 1e3

    def keep(self, name: str, unit: str, value: float, case: Case) -> None:
        self.measurements.append(Measurement(name, unit, (value,), case))


Section = Callable[[Speed], None]


def sections() -> Iterator[tuple[str, str, Section]]:
    """The operator whose checks have to be right, a title, and the function that times it."""
    yield "flash_attention", "prefill", prefill
    yield "paged_attention", "paged decode", decode
    yield "paged_attention", "decode of few requests", few
    yield "write_kv_cache", "writing keys and values", write
    yield "rms_norm", "RMSNorm", pointwise
    yield "rejection_sample", "verification", rejection
    yield "tiled_attention", "the way to FlashAttention", steps


def prefill(speed: Speed) -> None:
    """Causal, D 128, 32 query heads on 8 KV heads: ours, SDPA's flash backend, FlexAttention, torch.compile."""
    for length in (32,) if speed.bench.small else (1024, 4096, 8192, 16384):
        q = speed.bench.randn(length, 32 if not speed.bench.small else 4, 128, seed=1)
        k, v = (speed.bench.randn(length, q.shape[1] // 4, 128, seed=seed) for seed in (2, 3))
        case = {"tokens": length, "query heads": q.shape[1], "KV heads": k.shape[1], "D": 128}
        flops = 4 * length * length * q.shape[1] * 128 / 2
        ours = speed.time("flash_attention", lambda q=q, k=k, v=v: kernels.flash_attention(q, k, v), case)
        speed.keep("flash_attention", "FLOP/s", flops / ours, case)
        speed.keep("flash_attention over the measured matmul", "x", flops / ours / speed.flops, case)
        if speed.bench.small:
            continue
        best = speed.time("SDPA, flash backend", sdpa(q, k, v), case)
        speed.keep("SDPA, flash backend", "FLOP/s", flops / best, case)
        for name, make in (("FlexAttention", flex), ("torch.compile of naive attention", compiled)):
            if length <= 4096 or name == "FlexAttention":
                speed.time(name, make(q, k, v), case)
        if length >= 4096:
            speed.targets.append(Target(f"prefill of {length} tokens over SDPA", best / ours, ">=", PREFILL_SHARE))


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (q, k, v))

    def work() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return work


def flex(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (q, k, v))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device=q.device)
    function = torch.compile(flex_attention, dynamic=False)
    return lambda: function(q, k, v, block_mask=mask, enable_gqa=True)


def compiled(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    function = torch.compile(plain_attention, dynamic=False)
    return lambda: function(q, k, v, True)


def decode(speed: Speed) -> None:
    """64 requests with 4,096 tokens each, 32 query heads on 8 KV heads: bytes a second over what a copy reaches."""
    small = speed.bench.small
    requests, context, heads = (2, 40, (4, 2)) if small else (64, 4096, (32, 8))
    seconds: dict[str, float] = {}
    for format in FORMATS:
        cache = paged_inputs(speed.bench, format, [context] * requests, 1, heads, 128)
        case = {"requests": requests, "context": context, "format": format, "D": 128}
        seconds[format] = speed.time(
            "paged_attention", lambda c=cache: kernels.paged_attention(*c.arguments, **c.options), case
        )
        reached = cache.num_bytes / seconds[format]
        speed.keep("paged_attention", "bytes/s", reached, case)
        speed.keep("paged_attention over the measured copy", "x", reached / speed.bandwidth, case)
        speed.keep("paged_attention", "requests/s", requests / seconds[format], case)
        if format == "auto" and not small:
            speed.targets.append(
                Target("paged decode over the copy bandwidth", reached / speed.bandwidth, ">=", COPY_SHARE)
            )
            gathered = [x[cache.tables.long()].flatten(1, 2).transpose(1, 2) for x in (cache.keys, cache.values)]
            q = cache.q[:, :, None]
            speed.time(
                "SDPA on gathered keys and values",
                lambda q=q, g=gathered: F.scaled_dot_product_attention(q, *g, enable_gqa=True),
                case,
            )
        del cache
    if not small:
        speed.targets.append(Target("FP8 decode over 16 bit", seconds["auto"] / seconds["fp8_e4m3"], ">=", FP8_GAIN))


def few(speed: Speed) -> None:
    """One request with a long context: what splitting it among programs brings."""
    context = 40 if speed.bench.small else 32_768
    cache = paged_inputs(speed.bench, "auto", [context], 1, (32, 8) if not speed.bench.small else (4, 2), 128)
    for num_splits in (1, 4, 16, 64, None):
        case = {"requests": 1, "context": context, "splits": num_splits or "chosen"}
        speed.time(
            "paged_attention",
            lambda n=num_splits: kernels.paged_attention(*cache.arguments, num_splits=n, **cache.options),
            case,
        )


def write(speed: Speed) -> None:
    tokens = 8 if speed.bench.small else 4096
    k, v = speed.bench.randn(tokens, 8, 128, seed=1), speed.bench.randn(tokens, 8, 128, seed=2)
    slots = torch.randperm(tokens, device=speed.bench.device)
    for format in FORMATS:
        cache = paged_inputs(speed.bench, format, [tokens], 1, (8, 8), 128)
        case = {"tokens": tokens, "KV heads": 8, "format": format}
        speed.time(
            "write_kv_cache",
            lambda c=cache: kernels.write_kv_cache(k, v, c.keys, c.values, slots, **c.stored),
            case,
        )


def pointwise(speed: Speed) -> None:
    tokens, size = (3, 64) if speed.bench.small else (4096, 4096)
    x, weight = speed.bench.randn(tokens, size), speed.bench.randn(size, seed=1)
    wide, heads = speed.bench.randn(tokens, 2 * size), speed.bench.randn(tokens, 32, 128)
    cos = sin = speed.bench.randn(tokens, 1, 128, seed=2)
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "rms_norm": (
            lambda: kernels.rms_norm(x, weight, 1e-5),
            lambda: kernels.rms_norm_reference(x, weight, 1e-5),
        ),
        "silu_and_mul": (lambda: kernels.silu_and_mul(wide), lambda: kernels.silu_and_mul_reference(wide)),
        "rotary_embedding": (
            lambda: kernels.rotary_embedding(heads, cos, sin),
            lambda: kernels.rotary_embedding_reference(heads, cos, sin),
        ),
    }
    for name, (ours, reference) in pairs.items():
        case = {"tokens": tokens}
        speed.time(name, ours, case)
        speed.time(f"{name} in PyTorch", reference, case)


def rejection(speed: Speed) -> None:
    requests, k, vocab_size = (2, 2, 50) if speed.bench.small else (64, 4, 128_256)
    q = speed.bench.randn(requests, k, vocab_size, dtype=torch.float32).softmax(-1)
    p = speed.bench.randn(requests, k + 1, vocab_size, seed=1, dtype=torch.float32).softmax(-1)
    uniforms = torch.full((requests, k + 1), 0.5, dtype=torch.float64, device=q.device)
    arguments = (q.argmax(-1), q, p, torch.full((requests,), k, device=q.device), uniforms)
    case = {"requests": requests, "k": k, "vocabulary": vocab_size}
    speed.time("rejection_sample", lambda: kernels.rejection_sample(*arguments), case)
    speed.time("rejection_sample in PyTorch", lambda: kernels.rejection_sample_reference(*arguments), case)


def steps(speed: Speed) -> None:
    """Naive, tiled and flash attention, not causal, one sequence, 16 heads of 64."""
    for length in (32,) if speed.bench.small else (512, 2048, 8192):
        q, k, v = (speed.bench.randn(length, 2 if speed.bench.small else 16, 64, seed=seed) for seed in (1, 2, 3))
        case = {"tokens": length, "query heads": q.shape[1], "D": 64}
        operators: dict[str, Callable[..., object]] = {
            "naive_attention": kernels.naive_attention,
            "tiled_attention": lambda q, k, v: kernels.tiled_attention(q, k, v, rows=128, columns=64),
            "flash_attention": lambda q, k, v: kernels.flash_attention(q, k, v, causal=False),
        }
        for name, operator in operators.items():
            speed.time(name, lambda f=operator, q=q, k=k, v=v: f(q, k, v), {**case, "causal": "no"})
