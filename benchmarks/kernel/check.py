"""Every kernel against its reference, where it is to be timed: in 16 bit, long, and past 2^31 elements."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from servelab import kernels
from servelab.kernels.inspect import PagedInputs

FORMATS = ("auto", *kernels.QUANTIZED_DTYPES)


@dataclass(frozen=True)
class Outcome:
    """name: the operator and the case. error: the largest, as a share of what is allowed: up to 1 is right."""

    operator: str
    case: str
    error: float
    message: str = ""

    @property
    def is_right(self) -> bool:
        return self.error <= 1.0


@dataclass(frozen=True)
class Bench:
    """Where and how large. small: a dry run in the interpreter. dtype: of 16-bit inputs there."""

    device: torch.device
    small: bool
    dtype: torch.dtype

    def randn(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        numbers = torch.randn(*shape, generator=generator, device=self.device)
        return numbers.to(self.dtype if dtype is None else dtype)

    def indices(self, numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)


def check_all(bench: Bench, tell: Callable[[str], None]) -> list[Outcome]:
    """One outcome for each operator and case. A kernel that raises is wrong, and the others are still checked."""
    outcomes = []
    for operator, case, check in checks():
        tell(f"{operator}: {case}")
        try:
            outcomes.append(Outcome(operator, case, float(check(bench))))
        except Exception as error:  # whatever happens, the others are still wanted
            outcomes.append(Outcome(operator, case, float("inf"), f"{type(error).__name__}: {error}"))
    return outcomes


Check = Callable[[Bench], float]


def checks() -> Iterator[tuple[str, str, Check]]:
    for head_dim in (64, 128, 256, 80):
        yield "flash_attention", f"causal, D {head_dim}", lambda bench, d=head_dim: flash(bench, d, True)
    yield "flash_attention", "not causal, D 128", lambda bench: flash(bench, 128, False)
    yield "flash_attention", "packed sequences, D 128", packed
    yield "flash_attention", "float32, D 64", lambda bench: flash(bench, 64, True, torch.float32)
    for format in FORMATS:
        for name, queries in (("decode", 1), ("verification of 4 drafts", 5), ("chunk", 200)):
            for head_dim in (64, 128):
                yield (
                    "paged_attention",
                    f"{format}, {name}, D {head_dim}",
                    lambda bench, f=format, n=queries, d=head_dim: paged(bench, f, n, d),
                )
    yield "paged_attention", "a cache of more than 2^31 elements, its last block", large_cache
    for format in FORMATS:
        yield "write_kv_cache", format, lambda bench, f=format: write(bench, f)
    for dtype in kernels.QUANTIZED_DTYPES:
        for per in kernels.GRANULARITIES:
            yield "quantize_kv", f"{dtype}, a scale per {per}", lambda bench, t=dtype, p=per: quantize(bench, t, p)
    yield "merge_attention", "16 parts", merge
    yield "copy_blocks", "three of 64 blocks", copy
    yield "rms_norm", "N 4,096", rms_norm
    yield "rotary_embedding", "D 128", rotary
    yield "silu_and_mul", "I 14,336", silu
    yield "naive_attention", "D 64", lambda bench: step(bench, kernels.naive_attention)
    yield "tiled_attention", "D 64", lambda bench: step(bench, kernels.tiled_attention)
    yield "online_softmax", "rows of 10,000", softmax
    yield "rejection_sample", "drawn", lambda bench: rejection(bench, named=False)
    yield "rejection_sample", "named", lambda bench: rejection(bench, named=True)


def share(got: Tensor, plain: Tensor, exact: Tensor) -> float:
    """The error as a share of what is allowed: twice that of PyTorch in the same dtype, or the rounding of the result.

    exact: in float32 from the same inputs. For float32 itself: 32 units in the last place of the largest number.
    """
    if not torch.equal(got.isfinite(), exact.isfinite()):
        return float("inf")
    finite = exact.isfinite()
    if not finite.any():
        return 0.0
    epsilon, largest = torch.finfo(got.dtype).eps, exact[finite].abs().max().item()
    own = (got.float() - exact)[finite].abs().max().item()
    if got.dtype == torch.float32:
        return own / (32 * epsilon * max(largest, 1.0))
    theirs = (plain.float() - exact)[finite].abs().max().item()
    return own / max(2 * theirs, epsilon / 2 * max(largest, 1.0))


def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """PyTorch's own operations in the inputs' dtype: [Lq, H, D]."""
    group, num_queries, num_keys = q.shape[1] // k.shape[1], len(q), len(k)
    q, k, v = (x.transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
        scores = scores.masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


def flash(bench: Bench, head_dim: int, causal: bool, dtype: torch.dtype | None = None) -> float:
    length = 20 if bench.small else 4111
    q = bench.randn(length - 3, 4, head_dim, seed=1, dtype=dtype)
    k, v = (bench.randn(length, 2, head_dim, seed=seed, dtype=dtype) for seed in (2, 3))
    out, lse = kernels.flash_attention(q, k, v, causal=causal)
    exact, exact_lse = kernels.flash_attention_reference(q.float(), k.float(), v.float(), causal=causal)
    return max(share(out, plain_attention(q, k, v, causal), exact), share(lse, exact_lse, exact_lse))


def packed(bench: Bench) -> float:
    lengths = (3, 17, 1) if bench.small else (1000, 1, 37, 2500)
    starts = bench.indices([0, *torch.tensor(lengths).cumsum(0).tolist()])
    q, k, v = (bench.randn(sum(lengths), heads, 128, seed=heads) for heads in (4, 2, 1))
    k = k[:, :1]
    out, _ = kernels.flash_attention(q, k, v, query_starts=starts)
    exact, _ = kernels.flash_attention_reference(q.float(), k.float(), v.float(), query_starts=starts)
    parts = [slice(*starts[i : i + 2].tolist()) for i in range(len(lengths))]
    plain = torch.cat([plain_attention(q[part], k[part], v[part], True) for part in parts])
    return share(out, plain, exact)


def paged_inputs(
    bench: Bench, format: str, contexts: list[int], queries: int, heads: tuple[int, int], head_dim: int
) -> PagedInputs:
    return PagedInputs(
        contexts,
        heads=heads,
        head_dim=head_dim,
        queries=queries,
        format=format,
        device=bench.device,
        dtype=bench.dtype,
    )


def paged(bench: Bench, format: str, queries: int, head_dim: int) -> float:
    contexts = [queries + 3, queries + 20] if bench.small else [queries, queries + 1500, 4096, 16 * 200]
    queries = min(queries, 5) if bench.small else queries
    cache = paged_inputs(bench, format, contexts, queries, (4, 2), head_dim)
    exact, exact_lse = kernels.paged_attention_reference(cache.q.float(), *cache.arguments[1:], **cache.stored)
    worst = 0.0
    for num_splits in (None, 1, 3):
        out, lse = kernels.paged_attention(*cache.arguments, num_splits=num_splits, **cache.stored)
        # The reference rounds once, at the end; weights in 16 bit are as large an error again.
        allowed = torch.finfo(out.dtype).eps * exact.abs().max().item() * 2
        own = (out.float() - exact).abs().max().item()
        worst = max(worst, own / max(allowed, 1e-5), share(lse, exact_lse, exact_lse))
    return worst


def large_cache(bench: Bench) -> float:
    """vllm#47671: 32-bit offsets wrap around."""
    num_blocks = 8 if bench.small else 2**31 // (16 * 8 * 128) + 2
    cache = torch.empty(num_blocks, 16, 8, 128, dtype=torch.uint8, device=bench.device).view(torch.int8)
    scales = torch.full((num_blocks, 16, 8), 0.02, dtype=torch.float16, device=bench.device)
    assert bench.small or cache.numel() > 2**31
    k, v = bench.randn(16, 8, 128, seed=1), bench.randn(16, 8, 128, seed=2)
    slots = torch.arange(16, device=bench.device) + (num_blocks - 1) * 16
    options = {"format": "int8", "key_scales": scales, "value_scales": scales.clone()}
    values = cache[-2:].clone()
    kernels.write_kv_cache(k, v, cache, cache, slots, **{**options, "value_scales": scales})
    del values
    q = bench.randn(1, 16, 128, seed=3)
    table, context = bench.indices([[num_blocks - 1]]), bench.indices([16])
    options["value_scales"] = scales
    out, _ = kernels.paged_attention(q, cache, cache, table, context, **options)
    small = {"format": "int8", "key_scales": scales[-1:], "value_scales": scales[-1:]}
    exact, _ = kernels.paged_attention_reference(
        q.float(), cache[-1:], cache[-1:], bench.indices([[0]]), context, **small
    )
    return (out.float() - exact).abs().max().item() / (2 * torch.finfo(out.dtype).eps * exact.abs().max().item())


def write(bench: Bench, format: str) -> float:
    num_tokens = 7 if bench.small else 3001
    k, v = bench.randn(num_tokens, 2, 128, seed=1) * 50, bench.randn(num_tokens, 2, 128, seed=2)
    slots = torch.randperm(num_tokens + 20, generator=torch.Generator().manual_seed(0))[:num_tokens].to(bench.device)
    slots[3] = -1
    results = []
    for operator in (kernels.write_kv_cache, kernels.write_kv_cache_reference):
        shape = (-(-(num_tokens + 20) // 16), 16, 2, 128)
        dtype = bench.dtype if format == "auto" else torch.int8 if format == "int8" else torch.uint8
        caches = torch.zeros(2, *shape, dtype=dtype, device=bench.device)
        options = {}
        if format == "int8":
            options = {name: torch.zeros(shape[:3], dtype=torch.float16, device=bench.device) for name in SCALES}
        elif format != "auto":
            options = {name: torch.tensor([0.5, 0.02], device=bench.device) for name in SCALES}
        operator(k, v, caches[0], caches[1], slots, format=format, **options)
        results.append((caches, *options.values()))
    return 0.0 if all(map(torch.equal, *results)) else float("inf")


SCALES = ("key_scales", "value_scales")


def quantize(bench: Bench, dtype: str, per: str) -> float:
    x = bench.randn(5 if bench.small else 1001, 2, 128) * 30
    codes, scales = kernels.quantize_kv(x, dtype, per=per)
    want, want_scales = kernels.quantize_kv_reference(x, dtype, per=per)
    back, want_back = (
        kernels.dequantize_kv(codes, scales, dtype),
        kernels.dequantize_kv_reference(want, want_scales, dtype),
    )
    is_same = torch.equal(codes, want) and torch.equal(scales, want_scales) and torch.equal(back, want_back)
    return 0.0 if is_same else float("inf")


def merge(bench: Bench) -> float:
    outs = bench.randn(16, 5, 4, 128, dtype=torch.float32)
    lses = bench.randn(16, 5, 4, seed=1, dtype=torch.float32) * 10
    got, want = kernels.merge_attention(outs, lses), kernels.merge_attention_reference(outs, lses)
    return max(share(mine, theirs, theirs) for mine, theirs in zip(got, want, strict=True))


def copy(bench: Bench) -> float:
    cache = bench.randn(4, 64, 16, 2, 128 if not bench.small else 4)
    want, pairs = cache.clone(), bench.indices([[0, 3], [60, 1], [0, 63]])
    kernels.copy_blocks_reference(want, pairs)
    kernels.copy_blocks(cache, pairs)
    return 0.0 if torch.equal(cache, want) else float("inf")


def rms_norm(bench: Bench) -> float:
    x, weight = bench.randn(3 if bench.small else 1000, 4096), bench.randn(4096, seed=1)
    exact = kernels.rms_norm_reference(x.float(), weight.float(), 1e-5)
    return share(kernels.rms_norm(x, weight, 1e-5), kernels.rms_norm_reference(x, weight, 1e-5), exact)


def rotary(bench: Bench) -> float:
    x, angles = bench.randn(5 if bench.small else 1000, 3, 128), bench.randn(5 if bench.small else 1000, 1, 128, seed=1)
    cos, sin = angles.float().cos().to(x.dtype), angles.float().sin().to(x.dtype)
    exact = kernels.rotary_embedding_reference(x.float(), cos.float(), sin.float())
    return share(kernels.rotary_embedding(x, cos, sin), kernels.rotary_embedding_reference(x, cos, sin), exact)


def silu(bench: Bench) -> float:
    x = bench.randn(2 if bench.small else 500, 2 * (300 if bench.small else 14336)) * 3
    return share(kernels.silu_and_mul(x), kernels.silu_and_mul_reference(x), kernels.silu_and_mul_reference(x.float()))


def step(bench: Bench, operator: Callable[..., Tensor]) -> float:
    q, k, v = (bench.randn(40 if bench.small else 1111, 2, 64, seed=seed) for seed in (1, 2, 3))
    exact, _ = kernels.flash_attention_reference(q.float(), k.float(), v.float(), causal=False)
    return share(operator(q, k, v), plain_attention(q, k, v, False), exact)


def softmax(bench: Bench) -> float:
    x = bench.randn(3, 100 if bench.small else 10_000) * 5
    return share(kernels.online_softmax(x), x.softmax(-1), x.float().softmax(-1))


def rejection(bench: Bench, named: bool) -> float:
    """Token for token, but where a sum in another order passes the mark one place earlier: none in a thousand."""
    vocab_size, requests, k = (50, 6, 3) if bench.small else (49_152, 256, 4)
    q = bench.randn(requests, k, vocab_size, dtype=torch.float32).mul(2).softmax(-1)
    p = bench.randn(requests, k + 1, vocab_size, seed=1, dtype=torch.float32).mul(2).softmax(-1)
    drafts = q.argmax(-1)
    uniforms = torch.rand(requests, k + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(
        bench.device
    )
    num_draft = torch.arange(requests, device=bench.device) % (k + 1)
    arguments = (drafts, None if named else q, p, num_draft, uniforms)
    got, want = kernels.rejection_sample(*arguments), kernels.rejection_sample_reference(*arguments)
    if not torch.equal(got[1], want[1]):
        return float("inf")
    return (got[0] != want[0]).float().mean().item() / 1e-3
