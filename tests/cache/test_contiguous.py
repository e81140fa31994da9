"""`ContiguousCacheManager`: first fit, holes, both reserves, and thousands of orders against a naive bitmap."""

import math

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from servelab.cache import ContiguousCacheManager, KVCacheManager, OutOfSlots


def test_the_example_by_hand():
    """28 slots: place 7, 2, 7, 7, free the first and the third. 19 are free, and a request of 9 has no place."""
    manager = ContiguousCacheManager(28, reserve="exact")
    for name, length in (("A", 7), ("B", 2), ("C", 7), ("D", 7)):
        manager.allocate(name, length)
    manager.free("A")
    manager.free("C")
    assert manager.holes() == [range(0, 7), range(9, 16), range(23, 28)]
    assert (manager.num_free_slots, manager.largest_hole) == (manager.num_free, manager.largest_free) == (19, 7)
    assert not manager.can_allocate("E", 9)
    with pytest.raises(OutOfSlots, match="needed 9 free slots in a row, got 19 free slots, at most 7 in a row"):
        manager.allocate("E", 9)
    manager.check_integrity()


def test_the_same_example_fits_in_blocks():
    manager = KVCacheManager(num_blocks=7, block_size=4)
    for name, length in (("A", 7), ("B", 2), ("C", 7), ("D", 7)):
        manager.allocate(name, length)
    manager.free("A")
    manager.free("C")
    assert len(manager.allocate("E", 9)) == 3


def test_the_first_hole_that_is_long_enough_is_taken():
    manager = ContiguousCacheManager(20, reserve="exact")
    for name, length in (("A", 3), ("B", 1), ("C", 6), ("D", 1)):
        manager.allocate(name, length)
    manager.free("A")
    manager.free("C")
    assert manager.allocate("E", 4) == range(4, 8)
    assert manager.allocate("F", 3) == range(0, 3)


def test_reserve_max_gives_everybody_the_maximum():
    manager = ContiguousCacheManager(28, reserve="max", max_model_len=12)
    assert manager.allocate("A", 3) == range(0, 12)
    assert manager.allocate("B", 12) == range(12, 24)
    assert not manager.can_allocate("C", 1)


def test_holding_enough_already_is_not_an_allocation():
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 5)
    assert manager.can_allocate("A", 5)
    assert manager.allocate("A", 4) == range(0)
    assert (manager.start("A"), manager.num_free_slots) == (0, 5)


def test_a_range_cannot_grow():
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 5)
    assert not manager.can_allocate("A", 6)
    with pytest.raises(ValueError, match="expected at most the 5 slots that 'A' reserved, got 6"):
        manager.allocate("A", 6)


def test_slots_are_the_positions_after_the_start():
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 2)
    manager.allocate("B", 4)
    assert manager.start("B") == 2
    assert [manager.slot("B", position) for position in range(4)] == [2, 3, 4, 5]
    assert manager.slots("B", 1, 4) == [3, 4, 5]
    with pytest.raises(ValueError, match=r"expected a position in 0..3 of request 'B', got 4"):
        manager.slot("B", 4)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5), (5, 5), (-2, -1)])
def test_slots_outside_the_range_are_refused(start, stop):
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 2)
    manager.allocate("B", 4)
    assert manager.slots("B", 4, 4) == []
    assert manager.slots("B", 0, 4) == [2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"expected 0 <= start <= stop <= 4 \(the slots of request 'B'\), got"):
        manager.slots("B", start, stop)


def test_the_interface_of_blocks_has_nothing_to_do():
    """A scheduler may ask both managers the same questions: nothing is found, shared, copied or evicted."""
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 5)
    assert manager.prefix_caching is False
    assert manager.cache_full_blocks("A", [1, 2, 3, 4, 5], None, 5) == []
    assert manager.match_prefix([1, 2, 3, 4, 5, 6], "salt") == []
    assert manager.needs_copy("A", 4) is False
    assert manager.copy_on_write("A", 4) is None
    assert (manager.trim("A", 3), manager.num_slots_held("A")) == (range(0), 5)
    assert manager.take_evictions() == []
    assert (manager.num_slots_held("A"), manager.num_slots_held("B")) == (5, 0)
    assert manager.num_missing("B", 6, []) == 6
    assert manager.can_allocate("B", 5, [])
    manager.check_integrity()


def test_freeing_twice_gives_nothing_back_the_second_time():
    """A request freed twice must not free its successor's slots [vllm#1556]."""
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 4)
    assert manager.free("A") == range(0, 4)
    manager.allocate("B", 4)
    assert manager.free("A") == range(0)
    assert manager.num_free_slots == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "exact", None), "expected num_slots >= 1, got 0"),
        ((8, "some", None), r"expected reserve in \('max', 'exact'\), got 'some'"),
        ((8, "max", None), r"expected max_model_len in 1..8 \(num_slots\) to reserve it, got None"),
        ((8, "max", 9), r"expected max_model_len in 1..8 \(num_slots\) to reserve it, got 9"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ContiguousCacheManager(*arguments)


def test_lengths_that_cannot_be_are_refused():
    manager = ContiguousCacheManager(8, "max", 8)
    with pytest.raises(ValueError, match=r"expected num_tokens_total <= 8 \(max_model_len\), got 9"):
        manager.allocate("A", 9)
    with pytest.raises(ValueError, match="expected num_tokens_total >= 1, got 0"):
        manager.allocate("A", 0)
    with pytest.raises(ValueError, match="expected a request that holds slots, got 'A'"):
        manager.start("A")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [({"A": 5}, "'A' has 5 tokens in 4"), ({"A": 4, "B": 1}, "'B' has 1 tokens in 0"), ({}, "'A' has 0 tokens in 4")],
)
def test_check_integrity_names_tokens_without_slots(tokens, message):
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 4)
    manager._num_tokens = tokens
    with pytest.raises(RuntimeError, match=f"request {message} slots"):
        manager.check_integrity()


def test_check_integrity_names_an_overlap():
    manager = ContiguousCacheManager(10, reserve="exact")
    manager.allocate("A", 4)
    manager._ranges["B"] = range(3, 6)
    with pytest.raises(RuntimeError, match="two requests share slots, or one left the pool"):
        manager.check_integrity()


class ContiguousMachine(RuleBasedStateMachine):
    """The model: a bitmap of owners, searched slot by slot for the first run that is long enough."""

    manager_type = ContiguousCacheManager
    requests = st.sampled_from("ABCDEF")

    def __init__(self):
        super().__init__()
        self.manager = self.manager_type(24, reserve="exact")
        self.owners: list[str | None] = [None] * 24

    @rule(request=requests, length=st.integers(1, 10))
    def allocate(self, request, length):
        if request in self.owners:
            return
        starts = [s for s in range(25 - length) if set(self.owners[s : s + length]) == {None}]
        assert self.manager.can_allocate(request, length) == bool(starts)
        if not starts:
            with pytest.raises(OutOfSlots):
                self.manager.allocate(request, length)
            return
        assert self.manager.allocate(request, length) == range(starts[0], starts[0] + length)
        self.owners[starts[0] : starts[0] + length] = [request] * length

    @rule(request=requests)
    def free(self, request):
        held = [slot for slot, owner in enumerate(self.owners) if owner == request]
        assert list(self.manager.free(request)) == held
        self.owners = [None if owner == request else owner for owner in self.owners]

    @invariant()
    def the_bitmap_agrees(self):
        self.manager.check_integrity()
        runs = "".join("." if owner is None else "x" for owner in self.owners).split("x")
        assert self.manager.largest_hole == max(map(len, runs))
        assert self.manager.num_free_slots == self.owners.count(None)
        for request in self.manager.request_ids:
            start, length = self.owners.index(request), self.owners.count(request)
            assert self.manager.slots(request, 0, length) == list(range(start, start + length))


TestContiguousMachine = ContiguousMachine.TestCase
TestContiguousMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# The first counterexample will do: no shrinking, and the same ones every time.
PLANTED = settings(max_examples=100, deadline=None, database=None, derandomize=True, phases=[Phase.generate])


class TakesTheLastHole(ContiguousCacheManager):
    """Planted: last fit, called first fit."""

    def holes(self):
        return super().holes()[::-1]


class KeepsAHole(ContiguousCacheManager):
    """Planted: a hole of exactly the right length is passed over."""

    def allocate(self, request_id, num_tokens_total):
        for hole in self.holes():
            if len(hole) > num_tokens_total:
                self._ranges[request_id] = hole[:num_tokens_total]
                return hole[:num_tokens_total]
        raise OutOfSlots(num_tokens_total, self.num_free, self.largest_hole)


@pytest.mark.parametrize("manager_type", [TakesTheLastHole, KeepsAHole])
def test_the_machine_catches_a_planted_fault(manager_type):
    machine = type("Planted", (ContiguousMachine,), {"manager_type": manager_type})
    with pytest.raises((AssertionError, RuntimeError, ValueError, pytest.fail.Exception)):
        run_state_machine_as_test(machine, settings=PLANTED)


@pytest.mark.parametrize("number", [math.nan, math.inf, 2.0, True, "2", None, -1])
def test_what_is_no_number_of_slots_is_refused_and_takes_none(number):
    manager = ContiguousCacheManager(8, reserve="exact")
    with pytest.raises(ValueError, match=r"expected num_tokens_total (to be an integer|>= 1), got"):
        manager.allocate("A", number)
    manager.check_integrity()
    assert (manager.request_ids, manager.num_free) == ([], 8)
    with pytest.raises(ValueError, match=r"expected num_slots (to be an integer|>= 1), got"):
        ContiguousCacheManager(number, reserve="exact")
    with pytest.raises(ValueError, match="expected max_model_len"):
        ContiguousCacheManager(8, "max", number)
