"""The keys and values of one layer as the KV cache holds them: rounded to its format, one row a slot."""

from dataclasses import dataclass

import torch
from torch import Tensor

from servelab.kernels.quantize_kv import dequantize_kv, quantize_kv
from servelab.ops.batch import KVView


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """Views of one layer of a KV cache; writing to them writes to the cache.

    format: "auto" (numbers as they are), "int8", "fp8_e4m3" or "fp8_e5m2".
    keys, values: [P * block_size, G, D]; quantized formats as int8 or uint8.
    key_scales, value_scales: None for "auto"; "int8" one a slot and head, [P * block_size, G];
    FP8 one a head, [G].
    """

    format: str
    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put k and v [N, G, D] into `slots` [N], rounded to the format."""
        for x, stored, scales in ((k, self.keys, self.key_scales), (v, self.values, self.value_scales)):
            if scales is None:
                stored.index_copy_(0, slots, x.to(stored.dtype))
                continue
            # Static scales are `KVScales`, which were checked when they were made.
            static = None if self.format == "int8" else scales[:, None]
            quantized, new_scales = quantize_kv(x, self.format, static, scale_is_checked=True)
            stored.index_copy_(0, slots, quantized)
            if self.format == "int8":
                scales.index_copy_(0, slots, new_scales.squeeze(-1))

    def view(self, slots: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, D] of a range of slots in `dtype`; nothing is copied where nothing is converted."""
        return (
            dequantize(self.keys[slots], self.format, self.scales_of(self.key_scales, slots), dtype),
            dequantize(self.values[slots], self.format, self.scales_of(self.value_scales, slots), dtype),
        )

    def gather(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, D] of `slots` [S] in `dtype`, copied behind each other."""
        k, v = self.keys.index_select(0, slots), self.values.index_select(0, slots)
        return (
            dequantize(k, self.format, self.scales_of(self.key_scales, slots), dtype),
            dequantize(v, self.format, self.scales_of(self.value_scales, slots), dtype),
        )

    def scales_of(self, scales: Tensor | None, slots: slice | Tensor) -> Tensor | None:
        """The scales of rows [S, G, D] of `slots`: [S, G], or [G] where they are static."""
        return scales[slots] if scales is not None and self.format == "int8" else scales


def stored_layer(storage: KVView, layer: int) -> StoredLayer:
    """One layer of a KV cache as rows."""
    name = storage.format
    keys, values = storage.keys(layer).flatten(0, 1), storage.values(layer).flatten(0, 1)
    if name == "auto":
        return StoredLayer(name, keys, values, None, None)
    key_scales, value_scales = storage.key_scales(layer), storage.value_scales(layer)
    assert key_scales is not None
    assert value_scales is not None
    if name == "int8":
        key_scales, value_scales = key_scales.flatten(0, 1), value_scales.flatten(0, 1)
    return StoredLayer(name, keys, values, key_scales, value_scales)


def dequantize(rows: Tensor, name: str, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The numbers that `rows` [S, G, D] of the cache stand for."""
    if scales is None:
        return rows.to(dtype)
    return dequantize_kv(rows, scales[..., None], name, scale_is_checked=True).to(dtype)
