"""`KVStorage`: shapes, bytes, and that its views are the cache itself."""

import pytest
import torch

from servelab.cache import KVStorage


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


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"expected every size of \[2, L, P, block_size, G, D\] to be >= 1"):
        KVStorage(2, 0, 4, 5, 6)
