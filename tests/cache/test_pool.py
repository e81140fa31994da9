"""`BlockPool`: counts, order, errors, and thousands of orders of allocate, acquire and free against a naive model."""

import math

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from servelab.cache import BlockPool, OutOfBlocks


def test_a_new_pool_hands_out_its_blocks_in_order():
    pool = BlockPool(3)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    assert (pool.num_free, pool.num_referenced) == (0, 3)


def test_the_block_that_was_free_for_longest_comes_next():
    pool = BlockPool(4)
    for _ in range(3):
        pool.allocate()
    pool.free(2)
    pool.free(0)
    assert [pool.allocate() for _ in range(3)] == [3, 2, 0]


def test_a_block_with_two_owners_is_free_after_both_left():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.acquire(block)
    pool.free(block)
    assert (pool.num_free, pool.reference_count(block)) == (0, 1)
    pool.free(block)
    assert (pool.num_free, pool.reference_count(block)) == (1, 0)


def test_a_block_may_be_freed_to_the_head_of_the_queue():
    """Its content is worth nothing, so it is handed out before what was freed long ago."""
    pool = BlockPool(3)
    first, second = pool.allocate(), pool.allocate()
    pool.acquire(first)
    pool.free(second, next_out=True)
    pool.free(first, next_out=True)
    assert (pool.num_free, pool.reference_count(first)) == (2, 1), "it has an owner left"
    pool.free(first, next_out=True)
    assert [pool.allocate() for _ in range(3)] == [first, second, 2]


def test_a_block_cannot_be_freed_twice():
    """A double free would hand one block to two requests [vllm#1556]."""
    pool = BlockPool(2)
    block = pool.allocate()
    pool.free(block)
    with pytest.raises(ValueError, match="expected a block with an owner, got block 0, which is free"):
        pool.free(block)
    assert pool.num_free == 2
    pool.check_integrity()


def test_a_free_block_cannot_be_acquired():
    with pytest.raises(ValueError, match="got block 1, which is free"):
        BlockPool(2).acquire(1)


@pytest.mark.parametrize("block", [-1, 2])
def test_a_block_number_outside_the_pool_is_refused(block):
    for operation in (BlockPool.acquire, BlockPool.free, BlockPool.reference_count):
        with pytest.raises(ValueError, match=rf"expected a block in 0..1, got {block}"):
            operation(BlockPool(2), block)


def test_an_empty_pool_says_so():
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(OutOfBlocks, match="needed 1 free blocks, got 0") as caught:
        pool.allocate()
    assert (caught.value.needed, caught.value.free) == (1, 0)


def test_a_pool_has_at_least_one_block():
    with pytest.raises(ValueError, match="expected num_blocks >= 1, got 0"):
        BlockPool(0)


def test_check_integrity_names_a_lost_block():
    pool = BlockPool(3)
    pool.allocate()
    pool._reference_counts[0] = 0
    with pytest.raises(RuntimeError, match=r"lost blocks \(no owner, not free\): \[0\]"):
        pool.check_integrity()


def test_check_integrity_names_a_free_block_with_an_owner():
    pool = BlockPool(3)
    pool._reference_counts[1] = 1
    with pytest.raises(RuntimeError, match=r"free blocks with an owner: \[1\]"):
        pool.check_integrity()


def test_a_kept_block_can_get_an_owner_again_until_it_is_handed_out():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.keep(block)
    pool.free(block)
    assert (pool.num_free, pool.num_cached, pool.num_referenced) == (2, 1, 0)
    pool.acquire(block)
    assert (pool.num_free, pool.num_cached, pool.num_referenced) == (1, 0, 1)
    pool.free(block)
    assert [pool.allocate(), pool.allocate()] == [1, block]
    pool.free(block)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    with pytest.raises(ValueError, match="got block 0, which is free"):
        pool.acquire(block)


def test_a_block_that_was_hit_goes_to_the_end_of_the_queue():
    """Least recently used first: a hit counts as a use."""
    pool = BlockPool(3)
    for block in (0, 1, 2):
        pool.allocate()
        pool.keep(block)
    for block in (0, 1, 2):
        pool.free(block)
    pool.acquire(0)
    pool.free(0)
    assert [pool.allocate() for _ in range(3)] == [1, 2, 0]


def test_a_free_block_cannot_be_kept():
    with pytest.raises(ValueError, match="got block 1, which is free"):
        BlockPool(2).keep(1)


def test_an_owned_block_is_no_cached_one():
    """`num_cached` counts blocks without an owner; keeping twice is keeping once."""
    pool = BlockPool(2)
    pool.keep(pool.allocate())
    pool.keep(0)
    assert (pool.num_cached, pool.is_kept(0), pool.is_kept(1)) == (0, True, False)
    pool.acquire(0)
    pool.free(0)
    assert pool.num_cached == 0
    pool.free(0)
    assert pool.num_cached == 1
    pool.check_integrity()


def test_shared_means_more_than_one_owner():
    pool = BlockPool(1)
    pool.allocate()
    assert not pool.is_shared(0)
    pool.acquire(0)
    assert pool.is_shared(0)


def test_check_integrity_names_a_wrong_number_of_cached_blocks():
    pool = BlockPool(2)
    pool.keep(pool.allocate())
    pool.free(0)
    pool._num_cached = 0
    with pytest.raises(RuntimeError, match="1 free blocks keep their content, 0 were counted"):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """The model: a list of owned blocks (once per owner), a list of free ones in the order they became free, and the
    set of those that were kept since they were last handed out."""

    pool_type = BlockPool

    def __init__(self):
        super().__init__()
        self.pool = self.pool_type(5)
        self.owned: list[int] = []
        self.free: list[int] = list(range(5))
        self.kept: set[int] = set()

    @rule()
    def allocate(self):
        if not self.free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate()
            return
        assert self.pool.allocate() == self.free[0]
        self.owned.append(self.free.pop(0))
        self.kept.discard(self.owned[-1])

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def acquire(self, data):
        block = data.draw(st.sampled_from(self.owned))
        self.pool.acquire(block)
        self.owned.append(block)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def keep(self, data):
        block = data.draw(st.sampled_from(self.owned))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def acquire_a_free_block(self, data):
        block = data.draw(st.sampled_from(self.free))
        if block not in self.kept:
            with pytest.raises(ValueError, match="which is free"):
                self.pool.acquire(block)
            return
        self.pool.acquire(block)
        self.free.remove(block)
        self.owned.append(block)

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), next_out=st.booleans())
    def release(self, data, next_out):
        block = data.draw(st.sampled_from(self.owned))
        self.pool.free(block, next_out=next_out)
        self.owned.remove(block)
        if block not in self.owned:
            self.free.insert(0 if next_out else len(self.free), block)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def release_a_free_block(self, data):
        with pytest.raises(ValueError, match="which is free"):
            self.pool.free(data.draw(st.sampled_from(self.free)))

    @invariant()
    def counts_agree(self):
        self.pool.check_integrity()
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_cached == len(self.kept & set(self.free))
        assert self.pool.num_free + self.pool.num_referenced == 5
        assert [self.pool.reference_count(block) for block in range(5)] == [self.owned.count(b) for b in range(5)]
        assert [block for block in range(5) if self.pool.is_kept(block)] == sorted(self.kept)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


# The first counterexample will do: no shrinking, and the same ones every time.
PLANTED = settings(max_examples=100, deadline=None, database=None, derandomize=True, phases=[Phase.generate])


class FreesWhileOwned(BlockPool):
    """Planted: forgets that a block may have another owner."""

    def free(self, block, **place):
        super().free(block, **place)
        if self._reference_counts[block] == 1:
            self._reference_counts[block] = 0
            self._free[block] = None


class HandsOutTheLatest(BlockPool):
    """Planted: a stack where a queue is promised, so what was freed last is overwritten first."""

    def allocate(self):
        self._free.move_to_end(next(reversed(self._free)), last=False)
        return super().allocate()


class KeepsForEver(BlockPool):
    """Planted: a block that was handed out anew is still taken for the old content."""

    def allocate(self):
        kept = set(self._kept)
        block = super().allocate()
        self._kept = kept
        return block


class LeavesAHitInTheQueue(BlockPool):
    """Planted: a cached block gets an owner, and is handed out to another one too."""

    def acquire(self, block):
        super().acquire(block)
        self._free.setdefault(block)


@pytest.mark.parametrize("pool_type", [FreesWhileOwned, HandsOutTheLatest, KeepsForEver, LeavesAHitInTheQueue])
def test_the_machine_catches_a_planted_fault(pool_type):
    machine = type("Planted", (PoolMachine,), {"pool_type": pool_type})
    with pytest.raises((AssertionError, RuntimeError, ValueError, pytest.fail.Exception)):
        run_state_machine_as_test(machine, settings=PLANTED)


@pytest.mark.parametrize("block", [True, 1.0, "1", None, math.nan, -1, 4])
@pytest.mark.parametrize("method", ["free", "acquire", "keep", "reference_count", "is_kept"])
def test_what_is_no_block_number_is_refused_and_changes_nothing(method, block):
    """True would be block 1."""
    pool = BlockPool(4)
    pool.allocate(), pool.allocate()
    with pytest.raises(ValueError, match=r"expected a block in 0\.\.3, got"):
        getattr(pool, method)(block)
    pool.check_integrity()
    assert [pool.reference_count(number) for number in range(4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("count", [True, 2.0, "2", None, math.nan, math.inf, -1])
def test_what_is_no_number_of_blocks_is_refused(count):
    with pytest.raises(ValueError, match=r"expected num_blocks (to be an integer|>= 1), got"):
        BlockPool(count)
