"""`KVCacheManager`: blocks of a cached prefix that several requests have, how they are found and when they are lost."""

import pytest

from servelab.cache import KVCacheManager


def collide(parent_hash, tokens, salt):
    return 0


def manager_with(*prompts: list[int], num_blocks: int = 8, block_size: int = 4, **options) -> KVCacheManager:
    """Each prompt was computed by a request "0", "1", ... that still holds its blocks."""
    manager = KVCacheManager(num_blocks, block_size, prefix_caching=True, **options)
    for number, tokens in enumerate(prompts):
        manager.share(str(number), manager.match_prefix(tokens))
        manager.allocate(str(number), len(tokens))
        manager.cache_full_blocks(str(number), tokens)
    manager.check_integrity()
    return manager


EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_prompt_of_whole_blocks_still_computes_a_token():
    """2 x block_size tokens submitted twice: one block is found, not two, or nothing would be left to compute and no
    logits to choose from [nano-vllm#144, vllm#11186]."""
    manager = manager_with(EIGHT)
    assert manager.match_prefix(EIGHT) == [0]
    assert manager.match_prefix([*EIGHT, 9]) == [0, 1]


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("length", range(1, 13))
def test_a_hit_always_leaves_a_token(block_size, length):
    """Every length around the boundary, and blocks of one token [nano-vllm#144, nano-vllm#211]."""
    tokens = list(range(length))
    manager = manager_with(list(range(13)), num_blocks=13, block_size=block_size)
    found = manager.match_prefix(tokens)
    assert len(found) * block_size < length
    assert len(found) == (length - 1) // block_size


def test_an_empty_or_shorter_prompt_finds_nothing():
    manager = manager_with(EIGHT)
    assert manager.match_prefix([]) == manager.match_prefix([1]) == manager.match_prefix([1, 2, 3]) == []


def test_preempted_and_resumed_with_its_prefix_cached():
    """Cached and still missing tokens never exceed the request's tokens, nor its blocks those it had
    [nano-vllm#211]; preempted at block_size + 1 tokens, the one past the block is computed again [nano-vllm#217]."""
    tokens = [1, 2, 3, 4, 5]
    manager = manager_with(tokens)
    before = manager.block_table("0")
    assert manager.free("0") == before[::-1]
    prefix = manager.match_prefix(tokens)
    assert prefix == before[:1]
    assert manager.num_missing("0", 5, prefix) == 2
    manager.share("0", prefix)
    assert len(manager.allocate("0", 5)) == 1
    assert (manager.num_slots_held("0"), manager.num_free) == (8, 6)
    manager.check_integrity()


def test_a_shared_block_has_both_owners_and_survives_the_first():
    manager = manager_with([*EIGHT, 9], [*EIGHT, 10])
    assert manager.block_table("0") == [0, 1, 2]
    assert manager.block_table("1") == [0, 1, 3]
    assert [manager.pool.reference_count(block) for block in range(4)] == [2, 2, 1, 1]
    assert manager.num_free == 4
    manager.free("0")
    assert (manager.num_free, manager.pool.num_cached) == (5, 0)
    manager.free("1")
    assert (manager.num_free, manager.pool.num_cached) == (8, 2)
    manager.check_integrity()


def test_only_full_blocks_are_found():
    manager = manager_with([1, 2, 3, 4, 5, 6, 7])
    assert manager.match_prefix([1, 2, 3, 4, 5, 6, 7, 8, 9]) == [0]


def test_what_is_computed_later_is_found_later():
    manager = KVCacheManager(8, 2, prefix_caching=True)
    manager.allocate("A", 7)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    assert manager.cache_full_blocks("A", tokens, num_tokens=0) == []
    assert manager.cache_full_blocks("A", tokens, num_tokens=3) == [(0, 0)]
    assert manager.cache_full_blocks("A", tokens, num_tokens=3) == []
    assert manager.match_prefix(tokens) == [0]
    assert manager.cache_full_blocks("A", tokens, num_tokens=6) == [(1, 1), (2, 2)]
    assert manager.cache_full_blocks("A", tokens[:4]) == []
    assert manager.match_prefix(tokens) == [0, 1, 2]


def test_without_prefix_caching_nothing_is_found():
    manager = KVCacheManager(4, 2)
    manager.allocate("A", 4)
    assert manager.cache_full_blocks("A", [1, 2, 3, 4]) == []
    assert manager.match_prefix([1, 2, 3, 4]) == []
    manager.free("A")
    assert manager.pool.num_cached == 0
    assert manager.take_evictions() == []


@pytest.mark.parametrize("hashing", [{}, {"hash_block": collide}])
def test_other_tokens_and_other_salts_share_nothing(hashing):
    """However the hash collides [vllm#8229]."""
    manager = manager_with([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], **hashing)
    manager.allocate("salted", 5)
    assert manager.cache_full_blocks("salted", [1, 2, 3, 4, 5], "tenant") == [(0, 4)]
    assert manager.match_prefix([1, 2, 3, 4, 9]) == [0]
    assert manager.match_prefix([5, 4, 3, 2, 9]) == [2]
    assert manager.match_prefix([1, 2, 3, 4, 9], "tenant") == [4]
    assert manager.match_prefix([1, 2, 3, 4, 9], "other") == []
    assert manager.match_prefix([5, 4, 3, 2, 9], "tenant") == []
    manager.check_integrity()


def test_an_evicted_block_does_not_answer_to_its_old_tokens():
    """It was handed out again and holds something else [MinivLLM#87]. What was used longest ago goes first."""
    manager = manager_with([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], num_blocks=4)
    manager.free("0")
    manager.free("1")
    assert manager.num_free == 4
    assert manager.pool.num_cached == 2
    manager.allocate("new", 8)
    assert manager.block_table("new") == [1, 0]
    assert manager.take_evictions() == [0]
    assert manager.take_evictions() == []
    assert manager.match_prefix([1, 2, 3, 4, 5]) == []
    assert manager.match_prefix([6, 7, 8, 9, 10]) == [2]
    manager.check_integrity()
    manager.cache_full_blocks("new", [9] * 8)
    assert manager.match_prefix([9] * 9) == [1, 0]
    assert manager.match_prefix([1, 2, 3, 4, 5]) == []


def test_a_hit_keeps_a_block_from_eviction():
    manager = manager_with([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], num_blocks=4)
    manager.free("0")
    manager.free("1")
    manager.share("again", manager.match_prefix([1, 2, 3, 4, 5]))
    manager.free("again")
    manager.allocate("new", 12)
    assert manager.take_evictions() == [2]
    assert manager.match_prefix([1, 2, 3, 4, 5]) == [0]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    manager = manager_with([*EIGHT, 9, 10, 11, 12], num_blocks=3)
    manager.free("0")
    manager.allocate("new", 1)
    assert manager.match_prefix([*EIGHT, 9, 10, 11, 12, 13]) == [0, 1]


def test_a_free_prefix_block_counts_as_missing_and_an_owned_one_does_not():
    manager = manager_with([*EIGHT, 9], num_blocks=4)
    assert manager.num_missing("new", 9, [0, 1]) == 1
    assert manager.can_allocate("new", 9, [0, 1])
    assert manager.num_missing("new", 13, [0, 1]) == 2
    assert not manager.can_allocate("new", 13, [0, 1])
    manager.free("0")
    assert manager.num_missing("new", 9, [0, 1]) == 3
    assert manager.num_missing("new", 4, [0, 1]) == 2
    assert manager.can_allocate("new", 16, [0, 1])
    assert not manager.can_allocate("new", 17, [0, 1])


def test_two_requests_that_computed_the_same_keep_one_block_findable():
    """Both began before either was cached. The second stands aside, and takes over when the first is gone."""
    manager = KVCacheManager(4, 2, prefix_caching=True)
    for name in "AB":
        manager.allocate(name, 4)
    assert manager.cache_full_blocks("A", [1, 2, 3, 4], num_tokens=2) == [(0, 0)]
    assert manager.cache_full_blocks("B", [1, 2, 3, 4], num_tokens=2) == []
    assert manager.match_prefix([1, 2, 3]) == [0]
    manager.check_integrity()
    manager.free("A")
    manager.allocate("C", 4)
    assert manager.take_evictions() == [0]
    assert manager.match_prefix([1, 2, 3]) == []
    assert manager.cache_full_blocks("B", [1, 2, 3, 4]) == [(0, 2), (1, 3)]
    assert manager.match_prefix([1, 2, 3, 4, 5]) == [2, 3]
    manager.check_integrity()


def test_a_hole_in_the_middle_is_filled_by_who_has_the_block():
    """B's table: the first block A's too, the second a twin of A's, which is evicted; then B's own takes its place."""
    manager = KVCacheManager(7, 2, prefix_caching=True)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    manager.allocate("A", 4)
    manager.cache_full_blocks("A", tokens[:2])
    manager.share("B", manager.match_prefix(tokens[:3]))
    manager.allocate("B", 7)
    manager.cache_full_blocks("A", tokens[:4])
    assert manager.cache_full_blocks("B", tokens, num_tokens=4) == []
    manager.free("A")
    manager.allocate("C", 6)
    assert manager.take_evictions() == [1]
    assert manager.cache_full_blocks("B", tokens) == [(1, 2), (2, 3)]
    assert manager.match_prefix(tokens) == [0, 2, 3]
    manager.check_integrity()


def test_a_table_cannot_begin_with_what_is_no_cached_prefix():
    manager = manager_with([*EIGHT, 9], [7, 7, 7, 7, 7])
    before = [manager.pool.reference_count(block) for block in range(8)]
    for blocks in ([1], [1, 0], [0, 0], [0, 2], [0, 3], [2], [7], [0, 1, 3]):
        with pytest.raises(ValueError, match=r"expected the blocks of a cached prefix, got \["):
            manager.share("new", blocks)
    with pytest.raises(ValueError, match="expected a new request, got '0', which holds blocks"):
        manager.share("0", [0])
    with pytest.raises(ValueError, match="expected a new request, got '0', which holds blocks"):
        manager.share("0", [])
    assert before == [manager.pool.reference_count(block) for block in range(8)]
    assert manager.request_ids == ["0", "1"]
    manager.check_integrity()


def test_lists_that_go_in_and_out_are_copies():
    manager = manager_with([*EIGHT, 9])
    given = [0, 1]
    manager.share("A", given)
    given.append(7)
    manager.fork("A", "B").append(7)
    manager.block_table("A").append(7)
    assert manager.block_table("A") == manager.block_table("B") == [0, 1]
    manager.check_integrity()


def test_sharing_nothing_begins_no_table():
    manager = manager_with(EIGHT)
    manager.share("new", [])
    assert manager.request_ids == ["0"]
    assert manager.num_slots_held("new") == 0


def test_more_computed_tokens_than_slots_are_refused():
    manager = KVCacheManager(4, 2, prefix_caching=True)
    manager.allocate("A", 3)
    with pytest.raises(ValueError, match=r"expected at most 4 computed tokens of request 'A' \(its slots\), got 6"):
        manager.cache_full_blocks("A", [1] * 6)
    with pytest.raises(ValueError, match="got 6"):
        manager.cache_full_blocks("A", [1] * 7, num_tokens=6)
    with pytest.raises(ValueError, match="expected a request that holds blocks, got 'B'"):
        manager.cache_full_blocks("B", [1])
    assert manager.match_prefix([1, 1, 1]) == []


@pytest.mark.parametrize(("tokens", "salt"), [([1, 9, 3, 4], None), ([1, 2, 3, 4], "x")])
def test_tokens_that_changed_since_they_were_cached_are_refused(tokens, salt):
    """A block under the wrong tokens would give another request the wrong keys."""
    manager = KVCacheManager(4, 2, prefix_caching=True)
    manager.allocate("A", 4)
    manager.cache_full_blocks("A", [1, 2])
    with pytest.raises(ValueError, match=r"expected block 0 of request 'A' to hold \(1, 2\), salt None, as it was"):
        manager.cache_full_blocks("A", tokens, salt)
    assert manager.match_prefix([1, 2, 3]) == [0]
    manager.check_integrity()


def test_blocks_evicted_and_cached_again_are_told_in_order():
    manager = manager_with([1, 2, 3, 4, 5], num_blocks=2)
    manager.free("0")
    manager.allocate("A", 8)
    manager.cache_full_blocks("A", [5] * 8)
    manager.free("A")
    manager.allocate("B", 8)
    assert manager.take_evictions() == [0, 0, 1]
