"""Inputs for `paged_attention`, of any size and on any device: what a benchmark or a notebook measures it on."""

from collections.abc import Sequence

import torch
from torch import Tensor

from servelab.kernels.launch import ceil_div
from servelab.kernels.quantize_kv import quantize_kv_reference

FP8_SCALE = 0.02  # static, fit for numbers from a normal distribution


class PagedInputs:
    """Normal numbers in a paged cache whose blocks lie in disorder, the same for the same arguments.

    contexts: tokens of each sequence; queries: the last of them, which ask. heads: H query heads and G KV heads.
    dtype: of q, and of the cache where `format` is "auto".
    arguments, options: ``paged_attention(*inputs.arguments, **inputs.options)`` waits for nothing on a GPU.
    """

    def __init__(
        self,
        contexts: Sequence[int],
        *,
        heads: tuple[int, int],
        head_dim: int,
        queries: int = 1,
        format: str = "auto",
        block_size: int = 16,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float16,
    ) -> None:
        num_heads, num_kv_heads = heads
        counts = [ceil_div(context, block_size) for context in contexts]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).tolist()
        tables = [[order.pop() for _ in range(count)] for count in counts]

        def indices(numbers: Sequence[object]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=device)

        def normal(*shape: int, seed: int) -> Tensor:
            generator = torch.Generator(device).manual_seed(seed)
            return torch.randn(*shape, generator=generator, device=device).to(dtype)

        self.tables = indices([table + [0] * (max(counts) - len(table)) for table in tables])
        self.contexts = indices(contexts)
        self.starts = indices([queries * i for i in range(len(contexts) + 1)])
        self.q = normal(queries * len(contexts), num_heads, head_dim, seed=1)
        self.options: dict[str, object] = {
            "format": format,
            "max_query_length": queries,
            "max_context_length": max(contexts),
        }
        caches = []
        for name, seed in (("key_scales", 2), ("value_scales", 3)):
            numbers = normal(sum(counts), block_size, num_kv_heads, head_dim, seed=seed)
            if format != "auto":
                static = None if format == "int8" else torch.full((num_kv_heads, 1), FP8_SCALE, device=device)
                numbers, scales = quantize_kv_reference(numbers, format, static)
                self.options[name] = scales.squeeze(-1)
            caches.append(numbers)
        self.keys, self.values = caches

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.q, self.keys, self.values, self.tables, self.contexts, self.starts

    @property
    def stored(self) -> dict[str, object]:
        """How the cache is stored: the options that `write_kv_cache` and the reference take too."""
        return {name: value for name, value in self.options.items() if not name.startswith("max_")}

    @property
    def num_bytes(self) -> int:
        """Of the keys and values, and INT8's scales, that are read: each once."""
        tokens, (_, _, num_kv_heads, head_dim) = int(self.contexts.sum()), self.keys.shape
        scales = 2 if self.options["format"] == "int8" else 0
        return 2 * tokens * num_kv_heads * (head_dim * self.keys.itemsize + scales)
