"""`KVStorage`: shapes, bytes and scales of each format, and that its views are the cache itself."""

import math

import pytest
import torch

from servelab.cache import KV_FORMATS, KVScales, KVStorage, kv_bytes_per_token
from servelab.costs import MODEL_SPECS, kv_cache_bytes_per_token

FP8 = ["fp8_e4m3", "fp8_e5m2"]
SMOLLM2 = (30, 3, 64)  # layers, KV heads, head dim


def test_layers_have_the_documented_shape_and_start_at_zero():
    storage = KVStorage(num_layers=2, num_blocks=3, block_size=4, num_kv_heads=5, head_dim=6)
    for layer in range(2):
        assert storage.keys(layer).shape == storage.values(layer).shape == (3, 4, 5, 6)
        assert storage.keys(layer).count_nonzero() == storage.values(layer).count_nonzero() == 0


def test_a_view_writes_to_its_own_layer_only():
    storage = KVStorage(2, 3, 4, 5, 6)
    storage.keys(1).fill_(1.0)
    assert storage.keys(1).sum() == 3 * 4 * 5 * 6
    assert storage.keys(0).sum() == storage.values(0).sum() == storage.values(1).sum() == 0


def test_a_slot_is_a_row_of_the_flattened_blocks():
    """Attention addresses slot s as row s of [P * block_size, G, D]; the flattening must stay a view."""
    storage = KVStorage(1, 3, 4, 5, 6)
    storage.keys(0).view(12, 5, 6)[7] = 2.0
    assert storage.keys(0)[1, 3].eq(2.0).all()


@pytest.mark.parametrize(("dtype", "element_bytes"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.uint8, 1)])
def test_memory_counts_keys_and_values_of_all_layers(dtype, element_bytes):
    storage = KVStorage(30, 4, 16, 3, 64, dtype=dtype)
    assert storage.bytes_per_token() == 30 * 2 * 3 * 64 * element_bytes
    assert storage.memory() == 4 * 16 * storage.bytes_per_token()
    assert storage.scale_memory() == 0


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"expected every size of \[2, L, P, block_size, G, D\] to be >= 1"):
        KVStorage(2, 0, 4, 5, 6)


@pytest.mark.parametrize(
    ("format", "stored", "scale_shape", "scale_dtype"),
    [
        ("auto", torch.float16, None, None),
        ("int8", torch.int8, (3, 4, 5), torch.float16),
        ("fp8_e4m3", torch.uint8, (5,), torch.float32),
        ("fp8_e5m2", torch.uint8, (5,), torch.float32),
    ],
)
def test_a_format_has_its_dtype_and_its_scales(format, stored, scale_shape, scale_dtype):
    storage = KVStorage(2, 3, 4, 5, 6, dtype=torch.float16, format=format)
    assert (storage.format, storage.dtype) == (format, stored)
    assert storage.device == torch.device("cpu")
    assert storage.keys(1).dtype == storage.values(1).dtype == stored
    assert storage.keys(1).shape == storage.values(1).shape == (3, 4, 5, 6)
    scales = [storage.key_scales(0), storage.key_scales(1), storage.value_scales(0), storage.value_scales(1)]
    if scale_shape is None:
        assert scales == [None] * 4
        return
    for place, one in enumerate(scales):
        assert (one.shape, one.dtype) == (scale_shape, scale_dtype)
        one.fill_(place + 2)
    assert [one.unique().item() for one in scales] == [2, 3, 4, 5]
    assert storage.key_scales(1).unique().item() == 3


@pytest.mark.parametrize("format", ["", "fp8", "INT8", "bfloat16", None])
def test_an_unknown_format_is_refused(format):
    with pytest.raises(ValueError, match="expected a KV format in"):
        KVStorage(1, 1, 1, 1, 1, format=format)
    with pytest.raises(ValueError, match="expected a KV format in"):
        kv_bytes_per_token(1, 1, 1, torch.float32, format)


@pytest.mark.parametrize(
    ("format", "token_bytes", "static_bytes", "gain"),
    [
        ("auto", 23_040, 0, 1.0),
        ("int8", 11_880, 0, 1.9),
        ("fp8_e4m3", 11_520, 720, 1.95),
        ("fp8_e5m2", 11_520, 720, 1.95),
    ],
)
def test_bytes_of_smollm2_in_each_format(format, token_bytes, static_bytes, gain):
    """A token's bytes with all its scales, and how many times the tokens of 16 bit the same bytes hold."""
    layers, heads, head_dim = SMOLLM2
    storage = KVStorage(layers, 4, 16, heads, head_dim, dtype=torch.bfloat16, format=format)
    assert storage.bytes_per_token() == token_bytes
    assert kv_bytes_per_token(*SMOLLM2, torch.bfloat16, format) == token_bytes
    assert storage.memory() == 64 * token_bytes + static_bytes
    pool_bytes = 64 * 2**20
    at_16_bit = pool_bytes // 23_040
    assert (pool_bytes - static_bytes) // token_bytes >= gain * at_16_bit


def test_bytes_at_16_bit_are_those_of_the_formula():
    spec = MODEL_SPECS["SmolLM2-135M"]
    assert kv_cache_bytes_per_token(spec) == kv_bytes_per_token(*SMOLLM2, torch.float16, "auto") == 23_040


@pytest.mark.parametrize("format", KV_FORMATS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 3, 5, 1, 7), (3, 2, 1, 4, 59)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_the_bytes_of_all_its_tensors(format, shape, dtype):
    storage = KVStorage(*shape, dtype=dtype, format=format)
    tensors = []
    for layer in range(shape[0]):
        views = (storage.keys(layer), storage.values(layer), storage.key_scales(layer), storage.value_scales(layer))
        tensors += [view for view in views if view is not None]
    assert storage.memory() == sum(tensor.nbytes for tensor in tensors)
    static = 0 if format in ("auto", "int8") else storage.scale_memory()
    assert storage.memory() == shape[1] * shape[2] * storage.bytes_per_token() + static


def scales(layers: int, heads: int, value: float = 1.0) -> KVScales:
    return KVScales(torch.full((layers, heads), value), torch.full((layers, heads), 2 * value))


@pytest.mark.parametrize("format", FP8)
def test_static_scales_are_1_until_they_are_set(format):
    storage = KVStorage(2, 3, 4, 5, 6, format=format)
    assert storage.key_scales(1).tolist() == storage.value_scales(0).tolist() == [1.0] * 5
    view = storage.key_scales(1)
    given = KVScales(torch.rand(2, 5) + 0.1, torch.rand(2, 5) + 0.1)
    storage.set_scales(given)
    for layer in range(2):
        assert storage.key_scales(layer).equal(given.keys[layer])
        assert storage.value_scales(layer).equal(given.values[layer])
    assert view.equal(given.keys[1])
    given.keys.fill_(9.0)
    assert not storage.key_scales(0).equal(given.keys[0])


@pytest.mark.parametrize("format", ["auto", "int8"])
def test_a_format_without_static_scales_takes_none(format):
    with pytest.raises(ValueError, match=f"expected an FP8 format to have static scales, got format '{format}'"):
        KVStorage(2, 3, 4, 5, 6, format=format).set_scales(scales(2, 5))


@pytest.mark.parametrize("shape", [(5, 2), (2, 4), (1, 5), (3, 5)])
def test_scales_of_another_model_are_refused(shape):
    storage = KVStorage(2, 3, 4, 5, 6, format="fp8_e4m3")
    with pytest.raises(ValueError, match=r"expected scales \[2, 5\], got \["):
        storage.set_scales(scales(*shape))
    assert storage.key_scales(0).tolist() == [1.0] * 5


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["keys", "values"])
def test_a_scale_that_cannot_divide_is_refused(value, name):
    parts = {"keys": torch.ones(2, 5), "values": torch.ones(2, 5)}
    parts[name][1, 3] = value
    with pytest.raises(ValueError, match=f"expected positive, finite {name} scales"):
        KVScales(**parts)


@pytest.mark.parametrize(
    ("keys", "values", "name"),
    [
        (torch.ones(2, 5, 1), torch.ones(2, 5, 1), "keys"),
        (torch.ones(5), torch.ones(5), "keys"),
        (torch.ones(2, 5, dtype=torch.float16), torch.ones(2, 5), "keys"),
        (torch.ones(2, 5), torch.ones(2, 5, dtype=torch.float64), "values"),
        (torch.ones(2, 5), torch.ones(2, 4), "values"),
        (torch.ones(2, 5), torch.ones(2, 5, 1), "values"),
        ([[1.0]], torch.ones(1, 1), "keys"),
        (torch.ones(1, 1), None, "values"),
    ],
)
def test_scales_have_one_form(keys, values, name):
    with pytest.raises(ValueError, match=rf"expected {name} scales as float32 \[L, G\], K and V alike, got"):
        KVScales(keys, values)


def filled(format: str) -> KVStorage:
    """Every block holds its own number, everywhere."""
    storage = KVStorage(2, 5, 3, 2, 4, format=format)
    for layer in range(2):
        for block in range(5):
            storage.keys(layer)[block] = 10 * layer + block + 1
            storage.values(layer)[block] = 10 * layer + block + 51
            if format == "int8":
                storage.key_scales(layer)[block] = 10 * layer + block + 101
                storage.value_scales(layer)[block] = 10 * layer + block + 151
    return storage


def numbers(storage: KVStorage, layer: int, block: int) -> list[float]:
    parts = [storage.keys(layer)[block], storage.values(layer)[block]]
    if storage.format == "int8":
        parts += [storage.key_scales(layer)[block], storage.value_scales(layer)[block]]
    return [part.float().unique().item() for part in parts]


@pytest.mark.parametrize("format", KV_FORMATS)
def test_blocks_are_copied_in_all_layers_with_their_scales(format):
    storage, before = filled(format), filled(format)
    storage.copy_blocks([(1, 3), (4, 0)])
    for layer in range(2):
        for block, source in ((0, 4), (1, 1), (2, 2), (3, 1), (4, 4)):
            assert numbers(storage, layer, block) == numbers(before, layer, source)


@pytest.mark.parametrize("format", KV_FORMATS)
def test_pairs_are_copied_one_after_the_other(format):
    """A block can be copied on, taken again for another copy, or named twice: the last word counts."""
    for pairs, source in (([(1, 3), (3, 0)], 1), ([(1, 0), (2, 0)], 2), ([(2, 2)], 0), ([], 0)):
        storage, before = filled(format), filled(format)
        storage.copy_blocks(pairs)
        assert numbers(storage, 1, 0) == numbers(before, 1, source)


@pytest.mark.parametrize("pairs", [[(0, 5)], [(-1, 0)], [(1, 0), (5, 2)], [(1, 0), (2, True)]])
def test_a_block_outside_is_refused_before_anything_is_copied(pairs):
    storage, before = filled("int8"), filled("int8")
    with pytest.raises(ValueError, match=r"expected a block in 0\.\.4, got"):
        storage.copy_blocks(pairs)
    assert all(numbers(storage, 0, block) == numbers(before, 0, block) for block in range(5))
