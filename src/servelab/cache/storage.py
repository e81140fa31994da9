"""`KVStorage`: the tensors that hold the keys and values, and in which format. It knows slots, and nothing of requests.

format       a number takes          scales                                  bytes a token of SmolLM2-135M
auto         as many as in the model  none                                    23,040 at 16 bit
int8         1 byte                   float16, one a token, head, K and V     11,520 + 360 = 11,880
fp8_e4m3     1 byte                   float32, one a layer, head, K and V     11,520 (and 720 in all)
fp8_e5m2     1 byte                   the same                                the same
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from servelab.cache.pool import check_index
from servelab.kernels import QUANTIZED_DTYPES, check_scales, copy_blocks
from servelab.ops import huge_empty

KV_FORMATS = ("auto", *QUANTIZED_DTYPES)


@dataclass(frozen=True, slots=True, eq=False)
class KVScales:
    """Static scales for FP8: what the keys and the values of each layer and head are divided by, [L, G] float32 each.

    Raises ValueError unless both have that form and all are positive and finite.
    """

    keys: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        for name, scales in (("keys", self.keys), ("values", self.values)):
            if not _is_table(scales) or scales.shape != self.keys.shape:
                got = f"{scales.dtype} {list(scales.shape)}" if isinstance(scales, Tensor) else type(scales).__name__
                raise ValueError(f"expected {name} scales as float32 [L, G], K and V alike, got {got}")
            check_scales(scales, f"{name} scales")


def _is_table(scales: object) -> bool:
    return isinstance(scales, Tensor) and scales.dim() == 2 and scales.dtype == torch.float32


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of any content. On the CPU in huge pages, where there are any: every step reads most of it."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return huge_empty(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, format: str) -> int:
    """Bytes of one slot over all layers, K and V, with the scales that each slot has of its own.

    dtype: the model's, which "auto" stores. Raises ValueError for an unknown format.
    """
    check_format(format)
    number_bytes = dtype.itemsize if format == "auto" else 1
    scale_bytes = torch.float16.itemsize if format == "int8" else 0
    return 2 * num_layers * num_kv_heads * (head_dim * number_bytes + scale_bytes)


def check_format(format: str) -> None:
    """Raise ValueError unless `format` is one of `KV_FORMATS`."""
    if format not in KV_FORMATS:
        raise ValueError(f"expected a KV format in {KV_FORMATS}, got {format!r}")


class KVStorage:
    """K and V of `num_blocks` blocks for every layer, in one tensor ``[2, L, P, block_size, G, D]``, set to 0.

    One tensor means one allocation: the pool's memory is taken at the start or not at all, and no request can
    run out of it in mid-flight except by the block manager's word.

    dtype: the model's; "auto" stores numbers in it. format: one of `KV_FORMATS`; "int8" is stored as int8, FP8 as
    uint8. Scales: "int8" has one a slot and head, FP8 one a layer and head, 1.0 until `set_scales`.
    Raises ValueError for a size below 1 or an unknown format.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        format: str = "auto",
    ) -> None:
        shape = (2, num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(f"expected every size of [2, L, P, block_size, G, D] to be >= 1, got {list(shape)}")
        check_format(format)
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.format = format
        self._scales: Tensor | None = None
        if format == "int8":  # [2, L, P, block_size, G]
            dtype = torch.int8
            self._scales = torch.zeros(shape[:-1], dtype=torch.float16, device=device)
        elif format != "auto":  # [2, L, G]
            dtype = torch.uint8
            self._scales = torch.ones((2, num_layers, num_kv_heads), dtype=torch.float32, device=device)
        self._tensor = allocate(shape, dtype, torch.device(device)).zero_()
        # Views, made once: every step asks for them.
        self._keys: tuple[Tensor, ...] = self._tensor[0].unbind()
        self._values: tuple[Tensor, ...] = self._tensor[1].unbind()
        self._layer_scales: list[tuple[Tensor, ...]] = (
            [] if self._scales is None else [half.unbind() for half in self._scales]
        )

    @property
    def dtype(self) -> torch.dtype:
        """What a stored number is: the model's dtype, int8 or uint8."""
        return self._tensor.dtype

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    def keys(self, layer: int) -> Tensor:
        """The keys of one layer, ``[P, block_size, G, D]``, a view: writing to it writes to the cache."""
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        """The values of one layer, ``[P, block_size, G, D]``, a view."""
        return self._values[layer]

    def key_scales(self, layer: int) -> Tensor | None:
        """What the keys of one layer are multiplied by, a view: None ("auto"), ``[P, block_size, G]`` or ``[G]``."""
        return self._layer_scales[0][layer] if self._layer_scales else None

    def value_scales(self, layer: int) -> Tensor | None:
        """What the values of one layer are multiplied by, a view: None ("auto"), ``[P, block_size, G]`` or ``[G]``."""
        return self._layer_scales[1][layer] if self._layer_scales else None

    def set_scales(self, scales: KVScales) -> None:
        """Use calibrated static scales from now on. What was stored before is read with them too, so: set them first.

        Raises ValueError unless the format is FP8 and the scales are [L, G] of this storage.
        """
        if self._scales is None or self.format == "int8":
            raise ValueError(f"expected an FP8 format to have static scales, got format {self.format!r}")
        if scales.keys.shape != self._scales.shape[1:]:
            raise ValueError(f"expected scales {list(self._scales.shape[1:])}, got {list(scales.keys.shape)}")
        self._scales[0].copy_(scales.keys)
        self._scales[1].copy_(scales.values)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks in all layers, scales too: ``(source, target)``, one pair after the other.

        Raises ValueError, and copies nothing, when a block is not in the storage.
        """
        for pair in pairs:
            for block in pair:
                check_index("a block", block, self.num_blocks)
        pairs = [pair for pair in pairs if pair[0] != pair[1]]
        sources, targets = {source for source, _ in pairs}, {target for _, target in pairs}
        independent = len(targets) == len(pairs) and not sources & targets
        for group in [pairs] if independent else [[pair] for pair in pairs]:  # else one may be the next one's source
            indices = torch.tensor(group, dtype=torch.int64, device=self.device).reshape(-1, 2)
            copy_blocks(self._tensor.flatten(0, 1), indices)
            if self.format == "int8":
                assert self._scales is not None
                copy_blocks(self._scales.flatten(0, 1), indices)

    def memory(self) -> int:
        """Bytes of the whole pool, scales included."""
        return self._tensor.nbytes + self.scale_memory()

    def scale_memory(self) -> int:
        """Bytes of all scales, those that each slot has and static ones."""
        return 0 if self._scales is None else self._scales.nbytes

    def bytes_per_token(self) -> int:
        """Bytes of one slot over all layers, K and V, with the scales that it has of its own."""
        of_slots = self._tensor.nbytes + (self.scale_memory() if self.format == "int8" else 0)
        return of_slots // (self.num_blocks * self.block_size)
