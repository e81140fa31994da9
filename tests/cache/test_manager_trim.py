"""`KVCacheManager.trim`: the blocks that only rejected draft tokens needed go back, and nothing else does."""

import pytest

from servelab.cache import KVCacheManager


def test_blocks_behind_the_last_token_are_given_back_and_handed_out_next():
    """Room for 7 draft tokens, of which 2 were right: the blocks of the others go to whoever comes next."""
    manager = KVCacheManager(num_blocks=8, block_size=2)
    manager.allocate("A", 3)
    manager.allocate("A", 10)
    assert manager.trim("A", 5) == [4, 3]
    assert (manager.block_table("A"), manager.num_slots_held("A")) == ([0, 1, 2], 6)
    assert manager.trim("A", 6) == manager.trim("A", 99) == []
    manager.check_integrity()
    assert manager.allocate("B", 5) == [3, 4, 5]
    assert (manager.allocate("A", 6), manager.allocate("A", 7)) == ([], [6])


def test_drafts_that_come_and_go_push_nothing_out_of_the_prefix_cache():
    """The blocks of the last draft are those of the next one."""
    manager = KVCacheManager(num_blocks=6, block_size=2, prefix_caching=True)
    manager.allocate("old", 6)
    manager.cache_full_blocks("old", [1, 2, 3, 4, 5, 6])
    manager.allocate("A", 1)
    manager.free("old")
    for _ in range(5):
        assert manager.allocate("A", 5) == [4, 5]
        assert manager.trim("A", 1) == [5, 4]
    assert manager.match_prefix([1, 2, 3, 4, 5, 6, 7]) == [0, 1, 2]
    assert manager.take_evictions() == []


def test_shared_and_cached_blocks_stay_whole():
    """The owners beside it keep theirs, a copy is still made before the first write, and no prefix is lost."""
    manager = KVCacheManager(num_blocks=8, block_size=2, prefix_caching=True)
    tokens = [1, 2, 3, 4, 5]
    manager.allocate("A", 5)
    manager.cache_full_blocks("A", tokens)
    manager.fork("A", "B")
    manager.allocate("B", 9)
    assert manager.copy_on_write("B", 5) == (2, 2, 5)
    assert manager.trim("B", 6) == [4, 3]
    assert manager.trim("B", 2) == [5, 1]
    manager.check_integrity()
    assert (manager.block_table("A"), manager.block_table("B")) == ([0, 1, 2], [0])
    assert manager.match_prefix([*tokens, 6]) == [0, 1]
    assert manager.num_free == 5
    assert manager.trim("B", 1) == []
    assert manager.num_missing("B", 2) == 1, "the only block that it has is A's too"


def test_what_cannot_be_trimmed_is_refused():
    manager = KVCacheManager(num_blocks=4, block_size=2)
    manager.allocate("A", 4)
    with pytest.raises(ValueError, match="expected num_tokens >= 1, got 0"):
        manager.trim("A", 0)
    with pytest.raises(ValueError, match="expected a request that holds blocks, got 'B'"):
        manager.trim("B", 1)
