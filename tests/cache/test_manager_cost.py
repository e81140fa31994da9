"""`KVCacheManager`: what the steps cost that need no block, counted in calls."""

import sys

from servelab.cache import KVCacheManager


def python_calls(function) -> int:
    """How many Python functions are called by one call of `function`, itself not counted."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls - 1


def test_a_request_that_needs_no_block_costs_one_call():
    """Most steps of most requests: a scheduler with 256 of them asks several hundred times a step."""
    manager = KVCacheManager(num_blocks=64, block_size=16, prefix_caching=True)
    tokens = list(range(200))
    manager.allocate("A", 100)
    manager.cache_full_blocks("A", tokens, num_tokens=100)
    for num_tokens in (1, 101, 112):
        assert python_calls(lambda num_tokens=num_tokens: manager.num_missing("A", num_tokens)) == 1
        assert python_calls(lambda num_tokens=num_tokens: manager.can_allocate("A", num_tokens)) == 2
        assert python_calls(lambda num_tokens=num_tokens: manager.allocate("A", num_tokens)) == 1
    assert python_calls(lambda: manager.num_slots_held("A")) == 1
    assert python_calls(lambda: manager.cache_full_blocks("A", tokens, num_tokens=111)) <= 2
    assert python_calls(lambda: manager.slots("A", 100, 101)) <= 2
    assert python_calls(lambda: manager.allocate("A", 113)) > 1


def test_a_step_takes_as_many_calls_however_much_a_request_holds():
    """10 blocks or 1,000, in steps in which a block becomes full too."""
    costs = []
    for num_tokens in (10 * 16, 1000 * 16):
        manager = KVCacheManager(num_blocks=1100, block_size=16, prefix_caching=True)
        tokens = list(range(num_tokens + 32))
        manager.allocate("A", num_tokens)
        manager.cache_full_blocks("A", tokens, num_tokens=num_tokens)

        def step(manager=manager, tokens=tokens, num_tokens=num_tokens):
            manager.allocate("A", num_tokens + 16)
            manager.cache_full_blocks("A", tokens, num_tokens=num_tokens + 15)
            manager.slots("A", num_tokens, num_tokens + 16)
            manager.cache_full_blocks("A", tokens, num_tokens=num_tokens + 16)

        costs.append(python_calls(step))
    assert costs[0] == costs[1]
