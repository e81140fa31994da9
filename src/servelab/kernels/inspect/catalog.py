"""Representative launches of every kernel, small enough to call anywhere: what `resources` compiles for the table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from servelab import kernels

HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Example:
    """One call of one operator, by name. dtype: of its floating-point inputs."""

    name: str
    operator: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def examples(dtype: torch.dtype) -> Iterator[Example]:
    """Every kernel in every variant that compiles to code of its own, for inputs of `dtype`."""
    for head_dim in HEAD_DIMS:
        q, k, v = _zeros(32, 4, head_dim, dtype), _zeros(32, 2, head_dim, dtype), _zeros(32, 2, head_dim, dtype)
        for causal in (True, False):
            name = f"flash_attention, D {head_dim}{', causal' if causal else ''}"
            yield Example(name, kernels.flash_attention, (q, k, v), {"causal": causal})
        yield from _paged_attention(head_dim, dtype)
    same = [_zeros(32, 4, 64, dtype) for _ in range(3)]
    yield Example("naive_attention, D 64", kernels.naive_attention, (*same,))
    yield Example("tiled_attention, D 64", kernels.tiled_attention, (*same,))
    yield Example("online_softmax", kernels.online_softmax, (torch.zeros(4, 4096, dtype=dtype),))
    yield Example("merge_attention, D 128", kernels.merge_attention, (torch.zeros(8, 4, 4, 128), torch.zeros(8, 4, 4)))
    for format in ("auto", *kernels.QUANTIZED_DTYPES):
        keys, values, scales = _cache(format, 128, dtype)
        k = _zeros(32, 2, 128, dtype)
        yield Example(
            f"write_kv_cache, D 128, {format}",
            kernels.write_kv_cache,
            (k, k, keys, values, torch.arange(32)),
            {"format": format, **scales},
        )
    for format in kernels.QUANTIZED_DTYPES:
        codes = torch.zeros(32, 2, 128, dtype=torch.int8 if format == "int8" else torch.uint8)
        x = _zeros(32, 2, 128, dtype)
        yield Example(f"quantize_kv, {format}", kernels.quantize_kv, (x, format), {"per": "token_head"})
        yield Example(f"dequantize_kv, {format}", kernels.dequantize_kv, (codes, torch.ones(32, 2, 1), format))
    cache, pairs = torch.zeros(4, 8, 16, 2, 128, dtype=dtype), torch.tensor([[0, 3], [4, 1]])
    yield Example("copy_blocks", kernels.copy_blocks, (cache, pairs))
    yield Example(
        "rms_norm, N 4096", kernels.rms_norm, (torch.zeros(4, 4096, dtype=dtype), torch.ones(4096, dtype=dtype), 1e-5)
    )
    yield Example("silu_and_mul", kernels.silu_and_mul, (torch.zeros(4, 8192, dtype=dtype),))
    table = torch.zeros(32, 1, 128, dtype=dtype)
    yield Example("rotary_embedding, D 128", kernels.rotary_embedding, (_zeros(32, 4, 128, dtype), table, table))
    probs = torch.full((2, 4, 512), 1 / 512)
    drafts, num_draft = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 2])
    for name, draft_probs in (("drawn", probs[:, :3]), ("named", None)):
        yield Example(
            f"rejection_sample, {name}",
            kernels.rejection_sample,
            (drafts, draft_probs, probs, num_draft, torch.zeros(2, 4, dtype=torch.float64)),
        )


def _paged_attention(head_dim: int, dtype: torch.dtype) -> Iterator[Example]:
    """A decode, whose rows are the heads of one token, a verification and a chunk of a prefill, in every format."""
    tables, contexts = torch.zeros(1, 4, dtype=torch.int32), torch.tensor([64], dtype=torch.int32)
    for format in ("auto", *kernels.QUANTIZED_DTYPES):
        keys, values, scales = _cache(format, head_dim, dtype)
        for name, queries in (("decode", 1), ("verification", 12), ("chunk", 64)):
            yield Example(
                f"paged_attention, D {head_dim}, {format}, {name}",
                kernels.paged_attention,
                (_zeros(queries, 4, head_dim, dtype), keys, values, tables, contexts),
                {"query_starts": torch.tensor([0, queries]).int(), "format": format, "num_splits": 1, **scales},
            )


def _cache(format: str, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    stored = dtype if format == "auto" else torch.int8 if format == "int8" else torch.uint8
    keys = torch.zeros(4, 16, 2, head_dim, dtype=stored)
    if format == "auto":
        return keys, keys.clone(), {}
    scales = torch.ones(4, 16, 2, dtype=torch.float16) if format == "int8" else torch.ones(2)
    return keys, keys.clone(), {"key_scales": scales, "value_scales": scales.clone()}


def _zeros(num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(num_tokens, num_heads, head_dim, dtype=dtype)
