"""`KVCacheManager`: tables at block boundaries, all or nothing, and thousands of orders against a naive model."""

import math

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from servelab.cache import KVCacheManager, OutOfBlocks
from servelab.cache.manager import BlockTable


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(1, 1), (3, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3), (12, 3), (13, 4)]
)
def test_a_table_covers_its_tokens_and_no_block_more(num_tokens, num_blocks):
    manager = KVCacheManager(num_blocks=8, block_size=4)
    assert len(manager.allocate("A", num_tokens)) == num_blocks


def test_a_last_block_may_be_full():
    """8 tokens in blocks of 4: 4 lie in the last block, and token 7 in its last slot [MinivLLM#87]."""
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("other", 1)
    manager.allocate("A", 8)
    table = manager.block_table("A")
    assert len(table) == 2
    assert manager.slot("A", 7) == table[1] * 4 + 3
    assert manager.allocate("A", 8) == []
    assert len(manager.allocate("A", 9)) == 1


def test_blocks_of_one_token_work():
    """Block size 1 is the contiguous case's neighbour: every token begins a block [MinivLLM#87]."""
    manager = KVCacheManager(num_blocks=3, block_size=1)
    manager.allocate("A", 2)
    manager.allocate("B", 1)
    assert manager.slots("A", 0, 2) == manager.block_table("A") == [0, 1]
    assert not manager.can_allocate("A", 3)


def test_the_example_by_hand():
    """Block size 4, A has 7 prompt tokens and B has 2: A's 8th token fits its last block, the 9th takes a new one."""
    manager = KVCacheManager(num_blocks=6, block_size=4)
    assert manager.allocate("A", 7) == [0, 1]
    assert manager.allocate("B", 2) == [2]
    assert manager.allocate("A", 8) == []
    assert manager.allocate("A", 9) == [3]
    assert manager.block_table("A") == [0, 1, 3]
    assert manager.slots("A", 6, 9) == [6, 7, 12]
    assert manager.num_free_blocks == manager.num_free == manager.largest_free == 2
    assert manager.num_slots == 24


def test_freed_blocks_return_with_the_last_one_first():
    manager = KVCacheManager(num_blocks=3, block_size=4)
    manager.allocate("A", 12)
    assert manager.free("A") == [2, 1, 0]
    assert manager.allocate("B", 12) == [2, 1, 0]


def test_allocation_is_all_or_nothing():
    manager = KVCacheManager(num_blocks=3, block_size=4)
    manager.allocate("A", 4)
    with pytest.raises(OutOfBlocks, match="needed 3 free blocks, got 2"):
        manager.allocate("B", 12)
    assert manager.num_free_blocks == 2
    assert manager.request_ids == ["A"]
    manager.check_integrity()


def test_a_request_freed_twice_gives_nothing_back_the_second_time():
    """The free count equals the number of distinct free blocks, however often a request is freed [vllm#1556]."""
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 9)
    manager.allocate("B", 1)
    assert len(manager.free("A")) == 3
    assert manager.free("A") == []
    assert manager.num_free_blocks == len(set(manager.pool._free)) == 3
    manager.check_integrity()


def test_a_shorter_length_takes_no_block_away():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 9)
    assert manager.allocate("A", 2) == []
    assert len(manager.block_table("A")) == 3


def test_a_table_is_handed_out_as_a_copy():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 4)
    manager.block_table("A").append(3)
    assert manager.block_table("A") == [0]


@pytest.mark.parametrize("position", [-1, 8, 100])
def test_a_position_outside_the_table_is_refused(position):
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 5)
    with pytest.raises(ValueError, match=rf"expected a position in 0..7 of request 'A', got {position}"):
        manager.slot("A", position)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_slots_are_those_of_each_position(block_size):
    """Every range of a table whose blocks do not lie side by side, empty ones and single ones included."""
    manager = KVCacheManager(num_blocks=12, block_size=block_size)
    for number in range(6):
        manager.allocate("A", (number + 1) * block_size)
        manager.allocate("B", (number + 1) * block_size)
    manager.free("B")
    held = manager.num_slots_held("A")
    assert held == 6 * block_size
    each = [manager.slot("A", position) for position in range(held)]
    assert each != list(range(each[0], each[0] + held))
    for start in range(held + 1):
        for stop in range(start, held + 1):
            assert manager.slots("A", start, stop) == each[start:stop]


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (2, 1), (0, 9), (9, 9), (8, 9), (-2, -1), (math.nan, 2)])
def test_slots_outside_the_table_are_refused(start, stop):
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 5)
    with pytest.raises(ValueError, match=r"expected 0 <= start <= stop <= 8 \(the slots of request 'A'\), got"):
        manager.slots("A", start, stop)


def test_a_request_without_blocks_holds_no_slots():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    assert manager.num_slots_held("A") == 0
    with pytest.raises(ValueError, match="expected a request that holds blocks, got 'A'"):
        manager.slots("A", 0, 0)


def test_an_unknown_request_has_no_table():
    with pytest.raises(ValueError, match="expected a request that holds blocks, got 'B'"):
        KVCacheManager(4, 4).block_table("B")


def test_sizes_and_lengths_below_one_are_refused():
    with pytest.raises(ValueError, match="expected block_size >= 1, got 0"):
        KVCacheManager(4, 0)
    with pytest.raises(ValueError, match="expected num_tokens >= 1, got 0"):
        KVCacheManager(4, 4).allocate("A", 0)


def test_check_integrity_names_a_block_in_two_tables():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 4)
    manager.allocate("B", 4)
    manager._tables["B"].blocks.append(0)
    with pytest.raises(RuntimeError, match="block 0 is in 2 tables, its reference count is 1"):
        manager.check_integrity()


def test_check_integrity_names_a_block_that_no_table_has():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("A", 8)
    manager._tables["A"].blocks.pop()
    with pytest.raises(RuntimeError, match="block 1 is in 0 tables, its reference count is 1"):
        manager.check_integrity()


def test_check_integrity_names_a_table_that_says_more_than_its_blocks():
    for change in ({"room": 1}, {"entries": [None, None]}):
        manager = KVCacheManager(num_blocks=4, block_size=4)
        manager.allocate("A", 4)
        for name, value in change.items():
            setattr(manager._tables["A"], name, value)
        with pytest.raises(RuntimeError, match="request 'A' counts more than its blocks"):
            manager.check_integrity()


def test_check_integrity_names_an_empty_table_and_a_block_twice():
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager._tables["A"] = BlockTable()
    with pytest.raises(RuntimeError, match=r"request 'A' has an empty table or a block twice: \[\]"):
        manager.check_integrity()
    manager.allocate("A", 4)
    manager.pool.acquire(0)
    manager._tables["A"].blocks.append(0)
    with pytest.raises(RuntimeError, match=r"request 'A' has an empty table or a block twice: \[0, 0\]"):
        manager.check_integrity()


def test_check_integrity_looks_into_the_pool_and_the_prefixes():
    manager = KVCacheManager(num_blocks=4, block_size=4, prefix_caching=True)
    manager.pool._num_cached = 1
    with pytest.raises(RuntimeError, match="0 free blocks keep their content, 1 were counted"):
        manager.check_integrity()
    manager.pool._num_cached = 0
    manager._prefixes.insert(None, (1, 2, 3, 4), None)
    with pytest.raises(RuntimeError, match="an entry without block and children stayed"):
        manager.check_integrity()


def test_check_integrity_names_a_block_that_is_kept_for_nobody():
    manager = KVCacheManager(num_blocks=4, block_size=4, prefix_caching=True)
    manager.allocate("A", 4)
    manager.pool.keep(0)
    with pytest.raises(RuntimeError, match="block 0: kept True, but its prefix says otherwise"):
        manager.check_integrity()


@pytest.mark.parametrize("num_tokens", [2.0, True, math.nan, "2", 0, -1])
def test_what_is_no_number_of_tokens_is_refused_for_a_running_request_too(num_tokens):
    manager = KVCacheManager(4, 2)
    manager.allocate("A", 2)
    with pytest.raises(ValueError, match=r"expected num_tokens (to be an integer|>= 1), got"):
        manager.allocate("A", num_tokens)


@pytest.mark.parametrize("num_tokens", ["2", None, math.nan, -1])
def test_no_number_of_tokens_lacks_a_number_of_blocks(num_tokens):
    manager = KVCacheManager(4, 2)
    manager.allocate("A", 2)
    for name in "AB":
        with pytest.raises(ValueError, match="expected num_tokens of at least 0, got"):
            manager.num_missing(name, num_tokens)


class ManagerMachine(RuleBasedStateMachine):
    """The model: how many tokens each request has, and a memory in which each writes its own.

    Whoever reads back a token of another request, or none, shares or has lost a block.
    """

    manager_type = KVCacheManager
    num_blocks = 7
    requests = st.sampled_from("ABCDE")

    @staticmethod
    def blocks(num_tokens: int, block_size: int) -> int:
        return len(range(0, num_tokens, block_size))

    def __init__(self):
        super().__init__()
        self.manager = None

    @precondition(lambda self: self.manager is None)
    @rule(block_size=st.integers(1, 5))
    def start(self, block_size):
        self.block_size = block_size
        self.manager = self.manager_type(self.num_blocks, block_size)
        self.lengths: dict[str, int] = {}
        self.memory: dict[int, tuple[str, int]] = {}

    @precondition(lambda self: self.manager is not None)
    @rule(request=requests, grow=st.integers(1, 12))
    def allocate(self, request, grow):
        old = self.lengths.get(request, 0)
        new = old + grow
        missing = self.blocks(new, self.block_size) - self.blocks(old, self.block_size)
        fits = missing <= self.num_blocks - self.num_used()
        assert self.manager.can_allocate(request, new) == fits
        if not fits:
            with pytest.raises(OutOfBlocks):
                self.manager.allocate(request, new)
            return
        assert len(self.manager.allocate(request, new)) == missing
        self.lengths[request] = new
        for position, slot in enumerate(self.manager.slots(request, old, new), start=old):
            self.memory[slot] = (request, position)

    @precondition(lambda self: self.manager is not None and self.lengths)
    @rule(data=st.data())
    def append_one(self, data):
        self.allocate(data.draw(st.sampled_from(sorted(self.lengths))), 1)

    @precondition(lambda self: self.manager is not None and self.lengths)
    @rule(data=st.data(), num_kept=st.integers(1, 12))
    def trim(self, data, num_kept):
        request = data.draw(st.sampled_from(sorted(self.lengths)))
        old, new = self.lengths[request], min(self.lengths[request], num_kept)
        given_back = self.manager.trim(request, num_kept)
        assert len(given_back) == self.blocks(old, self.block_size) - self.blocks(new, self.block_size)
        self.lengths[request] = new

    @precondition(lambda self: self.manager is not None)
    @rule(request=requests)
    def free(self, request):
        held = self.blocks(self.lengths.pop(request, 0), self.block_size)
        freed = self.manager.free(request)
        assert len(freed) == len(set(freed)) == held

    @precondition(lambda self: self.manager is not None)
    @invariant()
    def nothing_leaks_and_nothing_is_shared(self):
        self.manager.check_integrity()
        assert self.manager.num_free_blocks == self.num_blocks - self.num_used()
        assert sorted(self.manager.request_ids) == sorted(self.lengths)
        for request, length in self.lengths.items():
            slots = self.manager.slots(request, 0, length)
            assert [self.memory[slot] for slot in slots] == [(request, position) for position in range(length)]

    def num_used(self) -> int:
        return sum(self.blocks(length, self.block_size) for length in self.lengths.values())


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# The first counterexample will do: no shrinking, and the same ones every time.
PLANTED = settings(max_examples=100, deadline=None, database=None, derandomize=True, phases=[Phase.generate])


class ForgetsOneBlock(KVCacheManager):
    """Planted: free gives back all blocks but the first."""

    def free(self, request_id):
        blocks = self._tables.pop(request_id, BlockTable()).blocks[::-1]
        for block in blocks[:-1]:
            self.pool.free(block)
        return blocks


class AddsABlockAtTheBoundary(KVCacheManager):
    """Planted: tokens // block_size + 1 blocks, which is one too many at multiples of the block size."""

    def num_missing(self, request_id, num_tokens, prefix=()):
        return max(0, num_tokens // self.block_size + 1 - self.num_slots_held(request_id) // self.block_size)


class ForgetsTheLastBlock(KVCacheManager):
    """Planted: tokens // block_size blocks, right at multiples of the block size only."""

    def num_missing(self, request_id, num_tokens, prefix=()):
        return max(0, num_tokens // self.block_size - self.num_slots_held(request_id) // self.block_size)


class SharesABlock(KVCacheManager):
    """Planted: the freed block that comes back first keeps its place in the old table."""

    def free(self, request_id):
        blocks = super().free(request_id)
        if len(blocks) > 1:
            self._tables[request_id] = BlockTable()
            self._tables[request_id].blocks = blocks[:1]
        return blocks


class TakesBlocksBeforeItRefuses(KVCacheManager):
    """Planted: an allocation that fails keeps what it took."""

    def allocate(self, request_id, num_tokens):
        new = [self.pool.allocate() for _ in range(self.num_missing(request_id, num_tokens))]
        self._tables.setdefault(request_id, BlockTable()).blocks.extend(new)
        return new


@pytest.mark.parametrize(
    "manager_type",
    [ForgetsOneBlock, AddsABlockAtTheBoundary, ForgetsTheLastBlock, SharesABlock, TakesBlocksBeforeItRefuses],
)
def test_the_machine_catches_a_planted_fault(manager_type):
    machine = type("Planted", (ManagerMachine,), {"manager_type": manager_type})
    with pytest.raises((AssertionError, RuntimeError, ValueError, pytest.fail.Exception)):
        run_state_machine_as_test(machine, settings=PLANTED)


@pytest.mark.parametrize("num_tokens", [math.nan, math.inf, 2.0, True, "2", None, -1])
def test_what_is_no_number_of_tokens_is_refused_and_leaves_no_table(num_tokens):
    """NaN would make an empty table: no comparison with it holds."""
    manager = KVCacheManager(4, 2)
    with pytest.raises(ValueError, match=r"expected num_tokens (to be an integer|>= 1), got"):
        manager.allocate("A", num_tokens)
    manager.check_integrity()
    assert (manager.request_ids, manager.num_free) == ([], 4)
    with pytest.raises(ValueError, match=r"expected block_size (to be an integer|>= 1), got"):
        KVCacheManager(4, num_tokens)
