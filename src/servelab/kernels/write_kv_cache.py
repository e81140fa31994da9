"""Put new keys and values into a paged KV cache, rounded to its format on the way.

    slot s of a token  ->  keys[s // block_size, s % block_size, g, :]         s = -1: the token is not written

One program takes one token and one KV head, K and V: it reads 2 D numbers once, finds the INT8 group's scale
while they are in registers, and writes 2 D codes. Rounding in a kernel of its own would read and write them again.

    k, v [T, G, D]    t0 t1 t2 t3          keys, values [P, block_size, G, D]
                      |  |  |  |              block 0       block 1       block 2
    slots [T]         9  10 -1 4     ->    [ .  .  .  . ] [ t3 .  .  . ] [ . t0 t1 .  ]      (block_size 4)

Bytes requested a token and head: 2 D e of k and v, 8 of its slot, and of the cache 2 D e (16 bit), 2 D + 4 (INT8, with
its two scales) or 2 D + 8 (FP8, whose two scales are read).

Paper: https://arxiv.org/abs/2309.06180 (PagedAttention), section 5.1, a fused reshape and block write.
"""

from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, launch, next_power_of_2
from servelab.kernels.number import encode_fp8, group_scale, int8_codes
from servelab.kernels.quantize_kv import quantize_kv_reference
from servelab.kernels.shape import check_cache, check_floats, check_indices


def write_kv_cache_reference(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *,
    format: str = "auto",
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    """What `write_kv_cache` does, in plain PyTorch."""
    written = slots >= 0  # [T]
    slots = slots[written].long()
    block, slot = slots // keys.shape[1], slots % keys.shape[1]
    for x, cache, scales in ((k, keys, key_scales), (v, values, value_scales)):
        rows = x[written]  # [N, G, D]
        if scales is None:
            cache[block, slot] = rows.to(cache.dtype)
            continue
        codes, of_rows = quantize_kv_reference(rows, format, None if format == "int8" else scales[:, None])
        cache[block, slot] = codes
        if format == "int8":
            scales[block, slot] = of_rows.squeeze(-1)


@triton.jit
def _write_kv_cache(
    k, v, keys, values, key_scales, value_scales, slots,  # [T, G, D] twice, [P, B, G, D] twice, [P, B, G] or [G], [T]
    k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    keys_block_stride, keys_slot_stride, keys_head_stride, values_block_stride, values_slot_stride, values_head_stride,
    k_scale_block_stride, k_scale_slot_stride, v_scale_block_stride, v_scale_slot_stride,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    token, g = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    block, slot = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    _store(
        k + token * k_token_stride + g * k_head_stride,
        keys + block * keys_block_stride + slot * keys_slot_stride + g * keys_head_stride,
        key_scales + block * k_scale_block_stride + slot * k_scale_slot_stride + g,
        D, WIDTH, FORMAT,
    )  # fmt: skip
    _store(
        v + token * v_token_stride + g * v_head_stride,
        values + block * values_block_stride + slot * values_slot_stride + g * values_head_stride,
        value_scales + block * v_scale_block_stride + slot * v_scale_slot_stride + g,
        D, WIDTH, FORMAT,
    )  # fmt: skip


@triton.jit
def _store(x, row, scale, D: tl.constexpr, WIDTH: tl.constexpr, FORMAT: tl.constexpr):
    """Round D numbers at `x` and write them to `row`. scale: where theirs is written (INT8) or read (FP8)."""
    dims = tl.arange(0, WIDTH)
    numbers = tl.load(x + dims, mask=dims < D, other=0.0)
    if FORMAT == "auto":
        codes = numbers.to(row.dtype.element_ty)
    elif FORMAT == "int8":
        of_group = group_scale(numbers.to(tl.float32), FORMAT)
        tl.store(scale, of_group)
        codes = int8_codes(numbers.to(tl.float32), of_group.to(tl.float32))
    else:
        given = tl.broadcast_to(tl.load(scale), numbers.shape)
        codes = encode_fp8(tl.div_rn(numbers.to(tl.float32), given), FORMAT)
    tl.store(row + dims, codes, mask=dims < D)


def write_kv_cache(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *,
    format: str = "auto",
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    """Write k and v [T, G, D] to `slots` [T] of keys and values [P, block_size, G, D], in place.

    slots: int32 or int64, 0 .. P * block_size - 1, each at most once; -1 skips its token. The cache may be views,
    such as the halves of one tensor. format: "auto", numbers in the cache's own dtype; "int8", whose scales
    [P, block_size, G] float16 are written too; "fp8_e4m3" or "fp8_e5m2" as uint8, divided by the scales [G] float32
    that are given, and held at the largest number that there is. Rounding as in `quantize_kv`.

    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for shapes, dtypes,
    devices or (on a CPU) slots that do not fit, before anything is written.
    """
    if k.dim() != 3 or k.shape != v.shape or k.shape[1:] != keys.shape[2:]:
        raise ValueError(
            f"expected k and v [T, G, D] for keys [P, block_size, G, D], got {list(k.shape)}, {list(v.shape)} and "
            f"{list(keys.shape)}"
        )
    check_floats(k=k, v=v)
    check_cache(keys, values, format, key_scales, value_scales, k.device)
    check_indices("slots", slots, (len(k),), k.device)
    num_slots = keys.shape[0] * keys.shape[1]
    if not k.is_cuda and len(slots) and (slots.min() < -1 or slots.max() >= num_slots):
        raise ValueError(f"expected slots in -1..{num_slots - 1}, got {int(slots.min())}..{int(slots.max())}")
    if not can_launch(k):
        write_kv_cache_reference(
            k, v, keys, values, slots, format=format, key_scales=key_scales, value_scales=value_scales
        )
        return
    k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
    k_scales, v_scales = (
        (keys if key_scales is None else key_scales),
        (values if value_scales is None else value_scales),
    )
    num_tokens, num_kv_heads, head_dim = k.shape
    launch(
        _write_kv_cache,
        (num_tokens, num_kv_heads),
        k.device,
        *(k, v, keys, values, k_scales, v_scales, slots),
        *(k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
        *keys.stride()[:3],
        *values.stride()[:3],
        *(k_scales.stride()[:2] if format == "int8" else (0, 0)),
        *(v_scales.stride()[:2] if format == "int8" else (0, 0)),
        D=head_dim,
        WIDTH=next_power_of_2(head_dim),
        BLOCK_SIZE=keys.shape[1],
        FORMAT=format,
        num_warps=1,
    )
