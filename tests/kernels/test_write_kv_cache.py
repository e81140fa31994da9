"""`write_kv_cache`: every token in its slot, rounded as `quantize_kv` rounds, and not a byte elsewhere."""

import pytest
import torch

from servelab.kernels import QUANTIZED_DTYPES, quantize_kv, write_kv_cache, write_kv_cache_reference
from tests.kernels.conftest import randn

SLOTS = [9, 10, -1, 4, 0, 23]


def make(format, head_dim=16, dtype=torch.float32, num_kv_heads=2):
    shape = (6, 4, num_kv_heads, head_dim)
    stored = dtype if format == "auto" else torch.int8 if format == "int8" else torch.uint8
    caches = [torch.full(shape, 77, dtype=stored) for _ in range(2)]
    scales = {}
    if format == "int8":
        scales = {name: torch.full(shape[:3], 7.0, dtype=torch.float16) for name in ("key_scales", "value_scales")}
    elif format != "auto":
        scales = {
            "key_scales": torch.tensor([0.5, 0.02][:num_kv_heads]),
            "value_scales": torch.tensor([3.0, 1.0][:num_kv_heads]),
        }
    return caches, {"format": format, **scales}


@pytest.mark.parametrize("head_dim", [1, 16, 59, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("format", ["auto", *QUANTIZED_DTYPES])
def test_writes_what_quantize_kv_gives_and_nothing_else(run, format, dtype, head_dim):
    k, v = (randn(6, 2, head_dim, seed=seed, dtype=dtype) * 100 for seed in (1, 2))
    slots = torch.tensor(SLOTS)
    for write in (
        lambda *args, **kwargs: run(write_kv_cache, *args, **kwargs),
        write_kv_cache,
        write_kv_cache_reference,
    ):
        (keys, values), options = make(format, head_dim, dtype)
        untouched = [cache.clone() for cache in (keys, values)]
        write(k, v, keys, values, slots, **options)
        for x, cache, before, name in (
            (k, keys, untouched[0], "key_scales"),
            (v, values, untouched[1], "value_scales"),
        ):
            want = before.flatten(0, 1)
            written = slots >= 0
            if format == "auto":
                want[slots[written]] = x[written]
            else:
                static = None if format == "int8" else options[name][:, None]
                codes, scales = quantize_kv(x[written], format, static)
                want[slots[written]] = codes
                if format == "int8":
                    all_scales = torch.full((24, 2), 7.0, dtype=torch.float16)
                    all_scales[slots[written]] = scales.squeeze(-1)
                    assert torch.equal(options[name].flatten(0, 1), all_scales)
            assert torch.equal(cache.flatten(0, 1), want)


@pytest.mark.parametrize("format", ["auto", *QUANTIZED_DTYPES])
def test_views_of_one_tensor(run, format):
    """The halves of [P, 2, ...], and k and v cut out of a projection [aiter#3498]."""
    (keys, values), options = make(format)
    both = torch.stack((keys, values), dim=1)
    k_view, v_view = both.unbind(1)
    qkv = randn(6, 8, 16)
    k, v = qkv[:, 4:6], qkv[:, 6:]
    run(write_kv_cache, k, v, k_view, v_view, torch.tensor(SLOTS, dtype=torch.int32), **options)
    write_kv_cache_reference(k, v, keys, values, torch.tensor(SLOTS), **make(format)[1])
    assert torch.equal(both, torch.stack((keys, values), dim=1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0, 1e5, 1e-30, -3.0])
@pytest.mark.parametrize("format", QUANTIZED_DTYPES)
def test_constant_zero_and_faulty_groups_as_the_reference(run, format, value):
    """Finite and exact where the group is [kernels-community#680]; saturated; a NaN stays in its group."""
    k = torch.full((6, 2, 16), value)
    k[0, 0, 1:] = 1.0
    v = randn(6, 2, 16)
    slots = torch.arange(6)
    (keys, values), options = make(format)
    (want_keys, want_values), want_options = make(format)
    run(write_kv_cache, k, v, keys, values, slots, **options)
    write_kv_cache_reference(k, v, want_keys, want_values, slots, **want_options)
    if format != "int8":
        is_nan = (want_keys & 0x7F) == 0x7F  # whatever its sign
        keys[is_nan] = want_keys[is_nan]
    assert torch.equal(values, want_values)
    if format == "int8":
        scales = options["key_scales"]
        assert torch.equal(scales.isnan(), want_options["key_scales"].isnan())
        assert torch.equal(scales.nan_to_num(0.0), want_options["key_scales"].nan_to_num(0.0))
        keys[scales.isnan()] = want_keys[scales.isnan()]
    assert torch.equal(keys, want_keys)


def test_nothing_to_write(run):
    (keys, values), options = make("auto")
    before = keys.clone()
    run(write_kv_cache, randn(3, 2, 16), randn(3, 2, 16), keys, values, torch.full((3,), -1), **options)
    assert torch.equal(keys, before)
    write_kv_cache(randn(0, 2, 16), randn(0, 2, 16), keys, values, torch.zeros(0, dtype=torch.int64), **options)
    assert torch.equal(keys, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(3, 2, 17)}, r"k and v \[T, G, D\]"),
        ({"v": torch.zeros(3, 1, 16)}, r"k and v \[T, G, D\]"),
        ({"slots": torch.tensor([0, 1])}, r"slots as int32 or int64 \[3\]"),
        ({"slots": torch.tensor([0.0, 1.0, 2.0])}, "slots as int32"),
        ({"slots": torch.tensor([0, 1, 24])}, r"slots in -1..23, got 0..24"),
        ({"slots": torch.tensor([0, -2, 2])}, r"slots in -1..23, got -2..2"),
        ({"format": "fp4"}, "a format in"),
        ({"format": "fp8_e4m3"}, "as torch.uint8"),
    ],
)
def test_refuses_what_does_not_fit_and_writes_nothing(change, message):
    (keys, values), _ = make("auto")
    arguments = {"k": randn(3, 2, 16), "v": randn(3, 2, 16), "keys": keys, "values": values, "slots": torch.arange(3)}
    before = keys.clone()
    with pytest.raises(ValueError, match=message):
        write_kv_cache(**{**arguments, **change})
    assert torch.equal(keys, before)
