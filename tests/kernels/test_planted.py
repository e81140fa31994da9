"""A kernel with a plausible fault is told from a right one: the tests beside this one would fail. And a change that
changes nothing passes, so that it is the fault that is seen."""

import pytest
import torch

from servelab.kernels import (
    flash_attention_reference,
    merge_attention_reference,
    paged_attention_reference,
    quantize_kv,
    rejection_sample_reference,
    write_kv_cache_reference,
)
from tests.kernels.conftest import randn
from tests.kernels.plant import observe_planted, plant
from tests.kernels.test_paged_attention import MIX, Case
from tests.kernels.test_rejection_sample import make as make_rejection


def flash_is_right(path, worker):
    """Lengths beyond a tile, unequal, so that mask, tail, rescale and group all matter."""
    for num_queries, num_keys, scale in ((70, 133, 3.0), (5, 2, None)):
        q, k, v = randn(num_queries, 4, 59, seed=1), randn(num_keys, 2, 59, seed=2), randn(num_keys, 2, 59, seed=3)
        seen = observe_planted(path, "flash_attention", q, k, v, scale=scale, worker=worker)
        if not is_near(seen, flash_attention_reference(q, k, v, scale=scale)):
            return False
    return True


def paged_is_right(path, worker):
    for format in ("auto", "int8", "fp8_e4m3"):
        case = Case(MIX, format=format)
        for num_splits in (1, 3):
            seen = observe_planted(
                path, "paged_attention", *case.arguments, **case.scales, num_splits=num_splits, worker=worker
            )
            if not is_near(seen, paged_attention_reference(*case.arguments, **case.scales)):
                return False
    return True


def merge_is_right(path, worker):
    outs, lses = randn(3, 5, 2, 24), randn(3, 5, 2) * 100
    seen = observe_planted(path, "merge_attention", outs, lses, worker=worker)
    return is_near(seen, merge_attention_reference(outs, lses))


def write_is_right(path, worker):
    k, v = randn(4, 2, 16), randn(4, 2, 16, seed=1)
    slots = torch.tensor([9, -1, 4, 0])
    for format in ("int8", "fp8_e5m2"):
        stored = torch.int8 if format == "int8" else torch.uint8
        shape = torch.Size((3, 4, 2))
        scales = (
            torch.zeros(2, *shape, dtype=torch.float16) if format == "int8" else torch.tensor([[0.5, 2.0], [3.0, 0.1]])
        )
        caches = torch.zeros(2, *shape, 16, dtype=stored)
        want, want_scales = caches.clone(), scales.clone()
        options = {"format": format}
        write_kv_cache_reference(k, v, *want, slots, key_scales=want_scales[0], value_scales=want_scales[1], **options)
        seen = observe_planted(
            path, "write_kv_cache", k, v, caches[0], caches[1], slots,
            key_scales=scales[0], value_scales=scales[1], worker=worker, **options,
        )  # fmt: skip
        if seen.record.faults or not torch.equal(caches, want) or not torch.equal(scales, want_scales):
            return False
    return True


def quantize_is_right(path, worker):
    x = randn(7, 3, 59) * 100
    for format in ("int8", "fp8_e4m3"):
        seen = observe_planted(path, "quantize_kv", x, format, per="token_head", worker=worker)
        if not all(map(torch.equal, seen.result, quantize_kv(x, format, per="token_head"))):
            return False
    return True


def rejection_is_right(path, worker):
    arguments = make_rejection(30, 3, 8)
    seen = observe_planted(path, "rejection_sample", *arguments, worker=worker)
    return all(map(torch.equal, seen.result, rejection_sample_reference(*arguments)))


def is_near(seen, want):
    """No fault, nothing left empty, and the numbers of the reference."""
    if any(record.faults for record in seen.records):
        return False
    tensors = [tensor for record in seen.records for tensor in record.tensors]
    if any(tensor.came_empty and tensor.num_stored not in (0, tensor.num_elements) for tensor in tensors):
        return False
    return all(
        torch.equal(mine.isfinite(), theirs.isfinite())
        and torch.allclose(mine.nan_to_num(7.0), theirs.nan_to_num(7.0), rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(seen.result, want, strict=True)
    )


FAULTS = {
    flash_is_right: (
        "flash_attention",
        {
            "the mask is off by one": (
                "columns[None, :] <= last_seen[:, None]",
                "columns[None, :] < last_seen[:, None]",
            ),
            "the mask is aligned to the beginning": (
                "last_seen = rows + num_keys - num_queries",
                "last_seen = rows",
            ),
            "what was summed is not rescaled": ("l = rescale * l + tl.sum(p, 1)", "l = l + tl.sum(p, 1)"),
            "the result is not rescaled": ("acc * rescale[:, None]", "acc"),
            "the tail is missing": (
                "for start in range(unmasked, end, COLUMNS)",
                "for start in range(unmasked, end - COLUMNS, COLUMNS)",
            ),
            "values are walked with the keys' stride": (
                "v + offsets * v_token_stride",
                "v + offsets * (k_token_stride + 1)",
            ),
            "query heads read the neighbour's keys": (
                "k += key_start.to(tl.int64) * k_token_stride + (head // GROUP) * k_head_stride",
                "k += key_start.to(tl.int64) * k_token_stride + (head % GROUP) * k_head_stride",
            ),
            "dims beyond D are not masked": (
                "    mask = (dims < D)[None, :]\n",
                "    mask = (dims < WIDTH)[None, :]\n",
            ),
            "the sum is not divided by": ("acc / l_or_one[:, None]", "acc"),
            "lse in powers of 2": ("(m + tl.log2(l_or_one)) * LN_2", "m + tl.log2(l_or_one)"),
            "an empty row is divided by 0": (
                "l_or_one = tl.where(l == 0.0, 1.0, l)",
                "l_or_one = l",
            ),
        },
    ),
    paged_is_right: (
        "paged_attention",
        {
            "the mask is off by one": (
                "columns[None, :] <= last_seen[:, None]",
                "columns[None, :] < last_seen[:, None]",
            ),
            "drafts see each other's future": (
                "last_seen = context - num_queries + token",
                "last_seen = context - 1 + 0 * token",
            ),
            "the table is not looked up": (
                "return block.to(tl.int64), tokens % BLOCK_SIZE",
                "return (tokens // BLOCK_SIZE).to(tl.int64), tokens % BLOCK_SIZE",
            ),
            "the neighbour's scale of the keys": (
                "k_scale_rows = block * k_scale_block_stride + slot * k_scale_slot_stride + g",
                "k_scale_rows = block * k_scale_block_stride + slot * k_scale_slot_stride + 1 - g",
            ),
            "the neighbour's static scale": (
                "scale *= tl.load(key_scales + g)",
                "scale *= tl.load(key_scales + 1 - g)",
            ),
            "the values' scale is missing": ("acc *= tl.load(value_scales + g)", "acc *= 1.0"),
            "the sum is scaled too": (
                "        m = new_m\n",
                "        m = new_m\n        l *= 1.01\n",
            ),
            "a split begins a token late": (
                "begin = split * split_tokens",
                "begin = split * split_tokens + (split > 0)",
            ),
            "the next head's queries": ("head.to(tl.int64) * q_head_stride", "(head ^ 1).to(tl.int64) * q_head_stride"),
            "slots are walked with the block's stride": (
                "v_rows = block * v_block_stride + slot * v_slot_stride",
                "v_rows = block * v_block_stride + slot * v_head_stride",
            ),
            "keys are not rescaled": ("rescale = tl.exp2(m - anchor)", "rescale = tl.exp2(0.0 * m)"),
        },
    ),
    merge_is_right: (
        "merge_attention",
        {
            "no maximum is taken off": ("m = tl.max(part_lses, 0)", "m = tl.max(part_lses, 0) * 0.0"),
            "parts count alike": (
                "weight = tl.exp(tl.load(lses + part_row) - m)",
                "weight = 1.0 + 0.0 * tl.load(lses + part_row)",
            ),
            "the last part is missing": ("for part in range(num_parts):", "for part in range(num_parts - 1):"),
            "lse without its maximum": ("m + tl.log(l_or_one)", "tl.log(l_or_one)"),
        },
    ),
    write_is_right: (
        "write_kv_cache",
        {
            "a slot of -1 is written": ("if slot < 0:", "if slot < -1:"),
            "slot and block are swapped": (
                "block, slot = slot // BLOCK_SIZE, slot % BLOCK_SIZE",
                "block, slot = slot % BLOCK_SIZE, slot // BLOCK_SIZE",
            ),
            "the keys' scale for the values": (
                "value_scales + block * v_scale_block_stride",
                "key_scales + block * v_scale_block_stride",
            ),
            "the scale is not stored": ("        tl.store(scale, of_group)\n", ""),
            "multiplied by the scale": ("tl.div_rn(numbers.to(tl.float32), given)", "numbers.to(tl.float32) * given"),
        },
    ),
    quantize_is_right: (
        "quantize_kv",
        {
            "the scale before it is rounded": (
                "scale = row_scale.to(tl.float32)[:, None]",
                "scale = row_scale.to(tl.float32)[:, None] * 1.0004",
            ),
            "the neighbour's scale": (
                "tl.store(new_scales + row, row_scale, mask=row < num_rows)",
                "tl.store(new_scales + (row + 1) % num_rows, row_scale, mask=row < num_rows)",
            ),
            "the last rows are missing": (
                "rounded = int8_codes(numbers, scale)",
                "rounded = int8_codes(tl.where(row[:, None] == num_rows - 1, 0.0, numbers), scale)",
            ),
        },
    ),
    rejection_is_right: (
        "rejection_sample",
        {
            "the residual is not taken": ("p = tl.maximum(p - q, 0.0)", "p = p + 0.0 * q"),
            "q is ignored": ("tl.where(u * q < p, 1, 0)", "tl.where(u < p, 1, 0)"),
            "the ratio is upside down": ("tl.where(u * q < p, 1, 0)", "tl.where(u * p < q, 1, 0)"),
            "accepted after a rejection": ("going = going * passes", "going = passes"),
            "the sum is not carried on": (
                "sums = before + tl.cumsum(weights, 0)",
                "sums = 1.5 * before + tl.cumsum(weights, 0) * 0.9",
            ),
        },
    ),
}
CASES = [
    pytest.param(is_right, module, change, id=f"{module}: {name}")
    for is_right, (module, changes) in FAULTS.items()
    for name, change in changes.items()
]


@pytest.mark.parametrize(("is_right", "module", "change"), CASES)
def test_a_planted_fault_shows(interpreter, tmp_path, is_right, module, change):
    assert not is_right(plant(tmp_path, module, change), interpreter)


@pytest.mark.parametrize(("is_right", "module"), [(is_right, module) for is_right, (module, _) in FAULTS.items()])
def test_without_a_fault_nothing_shows(interpreter, tmp_path, is_right, module):
    assert is_right(plant(tmp_path, module), interpreter)
