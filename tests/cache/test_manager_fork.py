"""`KVCacheManager`: samples of one prompt that share its blocks, and copy the one that they write to."""

import pytest

from servelab.cache import KVCacheManager, OutOfBlocks, hash_block


def manager_with(*prompts: list[int], num_blocks: int = 8, **options) -> KVCacheManager:
    """Blocks of 4. Each prompt was computed by a request "0", "1", ... that still holds its blocks."""
    manager = KVCacheManager(num_blocks, 4, prefix_caching=True, **options)
    for number, tokens in enumerate(prompts):
        manager.allocate(str(number), len(tokens))
        manager.cache_full_blocks(str(number), tokens)
    return manager


def test_samples_of_one_prompt_share_it_and_copy_the_last_block_when_they_write():
    """n = 3: two copies, not three; the last one who writes is alone by then."""
    manager = KVCacheManager(8, 4)
    manager.allocate("A", 6)
    assert manager.fork("A", "B") == manager.fork("A", "C") == [0, 1]
    assert manager.num_free == 6
    assert [manager.needs_copy(name, 6) for name in "ABC"] == [True] * 3
    assert [manager.num_missing(name, 7) for name in "ABC"] == [1, 1, 1]
    assert manager.allocate("A", 7) == []
    manager.check_integrity()
    assert manager.copy_on_write("A", 6) == (1, 1, 2)
    assert manager.block_table("A") == [0, 2]
    assert manager.num_missing("B", 9) == 2
    assert manager.copy_on_write("B", 6) == (1, 1, 3)
    assert not manager.needs_copy("C", 6)
    assert manager.num_missing("C", 7) == 0
    assert manager.copy_on_write("C", 6) is None
    assert manager.block_table("C") == [0, 1]
    assert [manager.num_missing(name, 8) for name in "ABC"] == [0, 0, 0]
    manager.check_integrity()
    assert [manager.free(name) for name in "ABC"] == [[2, 0], [3, 0], [1, 0]]
    assert manager.num_free == 8


def test_samples_of_a_prompt_of_whole_blocks_copy_nothing():
    manager = KVCacheManager(8, 4)
    manager.allocate("A", 8)
    manager.fork("A", "B")
    for name in "AB":
        assert manager.num_missing(name, 9) == 1
        assert len(manager.allocate(name, 9)) == 1
        assert manager.copy_on_write(name, 8) is None
    assert manager.num_free == 4


def test_no_more_tokens_take_no_copy():
    manager = KVCacheManager(2, 4)
    manager.allocate("A", 6)
    manager.fork("A", "B")
    assert manager.num_missing("A", 6) == manager.num_missing("A", 5) == 0
    assert manager.can_allocate("A", 6)
    assert manager.allocate("A", 6) == []
    assert manager.num_missing("A", 7) == 1
    assert not manager.can_allocate("A", 7)


def test_a_copy_needs_a_free_block_and_changes_nothing_without():
    manager = KVCacheManager(2, 4)
    manager.allocate("A", 6)
    manager.fork("A", "B")
    for attempt in (manager.allocate, manager.copy_on_write):
        with pytest.raises(OutOfBlocks, match="needed 1 free blocks, got 0"):
            attempt("A", 7 if attempt == manager.allocate else 6)
        assert manager.block_table("A") == [0, 1]
        manager.check_integrity()
    with pytest.raises(OutOfBlocks, match="needed 2 free blocks, got 0"):
        manager.allocate("A", 9)
    manager.free("B")
    assert manager.allocate("A", 7) == []
    assert manager.copy_on_write("A", 6) is None


def test_a_fork_of_a_fork_shares_too():
    manager = KVCacheManager(8, 4)
    manager.allocate("A", 5)
    manager.fork("A", "B")
    manager.fork("B", "C")
    assert manager.pool.reference_count(1) == 3
    manager.free("A")
    manager.copy_on_write("B", 5)
    assert manager.needs_copy("C", 5) is False
    manager.check_integrity()


def test_spare_blocks_that_a_fork_shares_are_each_copied_when_reached():
    """A table may reach beyond the tokens. Then more than the last block is shared, and each is counted."""
    manager = KVCacheManager(8, 2)
    manager.allocate("A", 8)
    manager.allocate("A", 3)
    manager.fork("A", "B")
    assert [manager.num_missing("B", tokens) for tokens in (4, 5, 6, 7, 9)] == [1, 2, 2, 3, 4]
    assert manager.allocate("B", 5) == []
    assert manager.copy_on_write("B", 3) == (1, 1, 4)
    assert manager.num_missing("B", 6) == 1
    assert manager.copy_on_write("B", 4) == (2, 2, 5)
    assert manager.num_missing("B", 6) == 0
    assert manager.num_missing("B", 8) == 1
    manager.check_integrity()


def test_a_copied_block_is_found_under_its_new_tokens_only():
    """The copy may diverge: what the request caches from there on is its own, and no block before is hashed again."""
    hashed = []

    def count(parent_hash, tokens, salt):
        hashed.append(tokens)
        return hash_block(parent_hash, tokens, salt)

    manager = manager_with([1, 2, 3, 4, 5, 6, 7, 8], hash_block=count)
    manager.fork("0", "B")
    assert manager.copy_on_write("B", 6) == (1, 1, 2)
    manager.allocate("B", 8)
    hashed.clear()
    assert manager.cache_full_blocks("B", [1, 2, 3, 4, 5, 6, 0, 0]) == [(1, 2)]
    assert hashed == [(5, 6, 0, 0)]
    assert manager.match_prefix([1, 2, 3, 4, 5, 6, 7, 8, 9]) == [0, 1]
    assert manager.match_prefix([1, 2, 3, 4, 5, 6, 0, 0, 9]) == [0, 2]
    manager.check_integrity()


def test_a_copy_can_evict():
    manager = manager_with([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], num_blocks=4)
    manager.free("0")
    manager.allocate("1", 6)
    manager.allocate("X", 1)
    manager.fork("1", "B")
    assert manager.copy_on_write("B", 6) == (1, 3, 0)
    assert manager.take_evictions() == [0]


def test_a_fork_needs_a_parent_that_holds_blocks_and_a_new_child():
    manager = KVCacheManager(4, 4)
    with pytest.raises(ValueError, match="expected a request that holds blocks, got 'A'"):
        manager.fork("A", "B")
    manager.allocate("A", 1)
    with pytest.raises(ValueError, match="expected a new request, got 'A', which holds blocks"):
        manager.fork("A", "A")
    assert manager.pool.reference_count(0) == 1


@pytest.mark.parametrize("position", [-1, 8, True, 1.0, None])
def test_a_copy_of_no_position_is_refused(position):
    manager = KVCacheManager(4, 4)
    manager.allocate("A", 5)
    for method in (manager.needs_copy, manager.copy_on_write):
        with pytest.raises(ValueError, match=r"expected a position in 0..7 of request 'A', got"):
            method("A", position)
