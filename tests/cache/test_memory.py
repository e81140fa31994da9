"""`CacheMemory`: every byte is counted once, by what it is and by who has it."""

import pytest
import torch

from servelab.cache import KV_FORMATS, ContiguousCacheManager, KVCacheManager, KVStorage


def paged(format: str = "auto", num_blocks: int = 6, block_size: int = 4) -> KVCacheManager:
    storage = KVStorage(3, num_blocks, block_size, 2, 8, dtype=torch.bfloat16, format=format)
    return KVCacheManager(num_blocks, block_size, prefix_caching=True, storage=storage)


@pytest.mark.parametrize(
    ("format", "token_bytes", "scales"),
    [
        ("auto", 3 * 2 * 2 * 16, 0),
        ("int8", 3 * 2 * 2 * 10, 24 * 3 * 2 * 2 * 2),
        ("fp8_e4m3", 96, 48),
        ("fp8_e5m2", 96, 48),
    ],
)
def test_every_byte_of_a_paged_cache(format, token_bytes, scales):
    manager = paged(format)
    manager.allocate("A", 6)
    manager.allocate("B", 5)
    manager.cache_full_blocks("B", [1, 2, 3, 4, 5])
    manager.free("B")
    memory = manager.memory()
    assert (memory.used, memory.rounding) == (6 * token_bytes, 2 * token_bytes)
    assert (memory.cached, memory.free) == (4 * token_bytes, 12 * token_bytes)
    assert memory.keys == memory.values == 24 * 3 * 2 * 8 * (2 if format == "auto" else 1)
    assert memory.scales == scales
    assert memory.static == (scales if format.startswith("fp8") else 0)
    assert memory.keys + memory.values + memory.scales == memory.total == manager.storage.memory()
    assert memory.used + memory.rounding + memory.cached + memory.free + memory.static == memory.total


def test_a_shared_block_counts_once_and_as_full_as_its_fullest_owner():
    manager = paged()
    token_bytes = manager.storage.bytes_per_token()
    manager.allocate("A", 6)
    manager.fork("A", "B")
    assert manager.memory().used == 6 * token_bytes
    manager.allocate("B", 7)
    assert (manager.memory().used, manager.memory().rounding) == (7 * token_bytes, token_bytes)
    manager.copy_on_write("B", 6)
    assert (manager.memory().used, manager.memory().rounding) == (9 * token_bytes, 3 * token_bytes)


def test_blocks_beyond_the_tokens_are_rounding():
    """Room that drafts took and the target then refused stays with the request, unused."""
    manager = paged()
    token_bytes = manager.storage.bytes_per_token()
    manager.allocate("A", 10)
    manager.allocate("A", 3)
    assert (manager.memory().used, manager.memory().rounding) == (3 * token_bytes, 9 * token_bytes)


def test_a_hit_moves_bytes_from_cached_to_used():
    manager = paged()
    token_bytes = manager.storage.bytes_per_token()
    manager.allocate("A", 4)
    manager.cache_full_blocks("A", [1, 2, 3, 4])
    manager.free("A")
    assert (manager.memory().used, manager.memory().cached) == (0, 4 * token_bytes)
    manager.share("B", manager.match_prefix([1, 2, 3, 4, 5]))
    assert (manager.memory().used, manager.memory().cached) == (4 * token_bytes, 0)


@pytest.mark.parametrize("format", KV_FORMATS)
def test_every_byte_of_a_contiguous_cache(format):
    storage = KVStorage(3, 20, 1, 2, 8, dtype=torch.bfloat16, format=format)
    token_bytes = storage.bytes_per_token()
    manager = ContiguousCacheManager(20, reserve="max", max_model_len=8, storage=storage)
    manager.allocate("A", 3)
    manager.allocate("B", 8)
    manager.allocate("A", 5)
    memory = manager.memory()
    assert (memory.used, memory.rounding) == (13 * token_bytes, 3 * token_bytes)
    assert (memory.cached, memory.free) == (0, 4 * token_bytes)
    assert memory.used + memory.rounding + memory.free + memory.static == memory.total == storage.memory()
    manager.free("A")
    assert (manager.memory().used, manager.memory().rounding) == (8 * token_bytes, 0)


def test_memory_needs_a_storage():
    for manager in (KVCacheManager(4, 2), ContiguousCacheManager(8, reserve="exact")):
        with pytest.raises(ValueError, match="expected a manager that was given its storage, got one without"):
            manager.memory()


@pytest.mark.parametrize(("blocks", "size"), [(3, 2), (5, 2), (2, 4), (8, 1)])
def test_a_storage_must_have_the_blocks_of_its_manager(blocks, size):
    """The same slots in other blocks would be other places."""
    storage = KVStorage(1, blocks, size, 1, 1)
    with pytest.raises(ValueError, match=f"expected a storage of 4 blocks of 2 slots, got {blocks} blocks of {size}"):
        KVCacheManager(4, 2, storage=storage)
    with pytest.raises(ValueError, match=f"expected a storage of 9 blocks of 1 slots, got {blocks} blocks of {size}"):
        ContiguousCacheManager(9, reserve="exact", storage=storage)
