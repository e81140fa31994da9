"""What kernels ask of their inputs: shapes, dtypes and places that fit together. Each function raises ValueError."""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256
# What the numbers of a KV cache are stored as.
STORED = {
    "auto": FLOATS,
    "int8": (torch.int8,),
    "fp8_e4m3": (torch.uint8,),
    "fp8_e5m2": (torch.uint8,),
}


def check_attention(q: Tensor, k: Tensor, v: Tensor) -> None:
    """q [Tq, H, D] and k, v [Tk, G, D] of one dtype on one device, H a multiple of G, D of 1 to 256."""
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise ValueError(
            f"expected q [Tq, H, D] and k, v [Tk, G, D], got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    check_heads(q.shape[1], k.shape[1])
    check_head_dim(q.shape[2])
    check_floats(q=q, k=k, v=v)


def check_same_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """As `check_attention`, with as many KV heads as query heads."""
    check_attention(q, k, v)
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"expected as many KV heads as query heads, got {k.shape[1]} and {q.shape[1]}")


def check_heads(num_query_heads: int, num_kv_heads: int) -> None:
    """Query heads are shared out evenly over KV heads."""
    if num_query_heads < 1 or num_kv_heads < 1 or num_query_heads % num_kv_heads:
        raise ValueError(
            f"expected query heads divisible by KV heads, got {num_query_heads} query heads and {num_kv_heads} KV heads"
        )


def check_head_dim(head_dim: int) -> None:
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"expected a head dimension of 1 to {MAX_HEAD_DIM}, got {head_dim}")


def check_floats(**tensors: Tensor) -> None:
    """All of one dtype, float32, float16 or bfloat16, and on one device."""
    found = {(x.dtype, x.device) for x in tensors.values()}
    if len(found) != 1 or next(iter(found))[0] not in FLOATS:
        got = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in tensors.items())
        raise ValueError(f"expected float32, float16 or bfloat16, the same for all and on one device, got {got}")


def check_indices(name: str, indices: Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    """int32 or int64 of `shape`, where None is any size, on `device`."""
    fits = indices.dim() == len(shape) and all(
        want in (None, have) for want, have in zip(shape, indices.shape, strict=True)
    )
    if not fits or indices.dtype not in (torch.int32, torch.int64) or indices.device != device:
        sizes = ["any" if size is None else size for size in shape]
        raise ValueError(
            f"expected {name} as int32 or int64 {sizes} on {device}, "
            f"got {indices.dtype} {list(indices.shape)} on {indices.device}"
        )


def check_starts(query_starts: Tensor | None, key_starts: Tensor | None, q: Tensor, k: Tensor) -> None:
    """Starts of as many sequences in q as in k. On a CPU also that they rise from 0 to the end of each."""
    if query_starts is None or key_starts is None:
        return
    check_indices("query_starts", query_starts, (None,), q.device)
    check_indices("key_starts", key_starts, (len(query_starts),), q.device)
    if len(query_starts) < 2:
        raise ValueError(f"expected query_starts of at least one sequence, [2] or more, got {list(query_starts.shape)}")
    if q.is_cuda:  # looking would mean to wait
        return
    for name, starts, length in (("query_starts", query_starts, len(q)), ("key_starts", key_starts, len(k))):
        if starts[0] != 0 or starts[-1] != length or (starts.diff() < 0).any():
            raise ValueError(f"expected {name} to rise from 0 to {length}, got {starts.tolist()}")


def check_cache(
    keys: Tensor,
    values: Tensor,
    format: str,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    device: torch.device,
) -> None:
    """keys and values [P, block_size, G, D] as `format` stores them, with the scales that it has, on `device`."""
    if format not in STORED:
        raise ValueError(f"expected a format in {tuple(STORED)}, got {format!r}")
    if keys.dim() != 4 or keys.shape != values.shape or 0 in keys.shape:
        raise ValueError(
            f"expected keys and values [P, block_size, G, D] alike, got {list(keys.shape)} and {list(values.shape)}"
        )
    for name, cache in (("keys", keys), ("values", values)):
        if cache.dtype not in STORED[format] or cache.device != device:
            wanted = ", ".join(str(dtype) for dtype in STORED[format])
            raise ValueError(
                f"expected {name} of format {format} as {wanted} on {device}, got {cache.dtype} on {cache.device}"
            )
        if cache.stride(3) != 1:
            raise ValueError(
                f"expected the D numbers of a head behind each other, got {name} with stride {cache.stride()}"
            )
    num_blocks, block_size, num_kv_heads, _ = keys.shape
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if format == "auto":
            fits, wanted = scales is None, "none"
        elif format == "int8":
            shape = (num_blocks, block_size, num_kv_heads)
            fits, wanted = _fits(scales, shape, torch.float16, device), f"float16 {list(shape)}"
        else:
            fits, wanted = _fits(scales, (num_kv_heads,), torch.float32, device), f"float32 [{num_kv_heads}]"
        if not fits:
            got = "none" if scales is None else f"{scales.dtype} {list(scales.shape)} on {scales.device}"
            raise ValueError(f"expected {name} of format {format}: {wanted}, on {device}, got {got}")


def _fits(scales: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    return (
        scales is not None
        and scales.shape == shape
        and scales.dtype == dtype
        and scales.device == device
        and scales.stride(-1) == 1
    )
