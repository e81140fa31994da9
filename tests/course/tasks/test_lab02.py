"""Lab 02's judges against servelab's own block manager and trace."""

import pytest

from servelab.cache import KVCacheManager, OutOfBlocks
from servelab.course.assignment import run_assignment_task
from servelab.course.tasks import tasks
from servelab.course.tasks.lab02 import BLOCK_MANAGER, BLOCK_SIZE, LAST_BLOCK, WASTE, crowded_load, draw_pool
from servelab.course.tasks.lab02.manager import drive
from servelab.course.tasks.lab02.waste import measured
from servelab.course.tasks.observe import foreign_module
from servelab.course.tasks.task import STANDARD_IMPORTS
from servelab.course.tasks.workload import record
from servelab.trace import Trace, waste


class OurManager:
    """servelab's manager behind the lab's interface: the judge's expectation is what it does."""

    def __init__(self, num_blocks, block_size):
        self.manager = KVCacheManager(num_blocks, block_size)
        self.num_tokens = {}
        self.block_table = self.manager.block_table

    @property
    def num_free(self):
        return self.manager.num_free

    def _grow(self, request, num_tokens):
        try:
            self.manager.allocate(request, num_tokens)
        except OutOfBlocks:
            return False
        self.num_tokens[request] = num_tokens
        self.manager.check_integrity()
        return True

    def allocate(self, request, num_tokens):
        return self._grow(request, num_tokens)

    def append(self, request):
        return self._grow(request, self.num_tokens[request] + 1)

    def free(self, request):
        self.manager.free(request)


def test_points_and_kinds():
    lab = tasks("lab02")
    assert {one.kind for one in lab} == {"fill", "debug", "design", "measure"}
    assert sum(one.points for one in lab if one.kind != "fill") >= 0.4 * sum(one.points for one in lab)


@pytest.mark.parametrize("seed", range(8))
def test_expected_views_are_what_our_manager_does(seed):
    for case in BLOCK_MANAGER.cases(seed):
        assert drive(OurManager, case.arguments) == case.expected


def test_hidden_operations_refuse_cross_edges_and_free_twice():
    for seed in range(8):
        views = [view for case in BLOCK_MANAGER.hidden(seed) for view in case.expected]
        assert any(view["did"] is False for view in views)
        assert any(view["num_free"] == 0 for view in views)
    boundary = BLOCK_MANAGER.visible(0)[1]
    assert [view["num_free"] for view in boundary.expected] == [5, 4, 7, 7]


def test_last_block_of_eight_tokens_is_full():
    """MinivLLM#87: 8 tokens in blocks of 4; token 7 lies at table[1] * 4 + 3."""
    case = LAST_BLOCK.visible(0)[1]
    assert case.expected[0] == 11 * 4 + 3
    assert len(case.expected[1]) == 4


@pytest.mark.parametrize("seed", range(10))
def test_some_size_holds_and_more_blocks_than_needed_do_too(seed):
    pool = draw_pool(seed)
    held = []
    for size in (2**power for power in range(9)):
        blocks = pool["pool_bytes"] // (size * pool["kv_bytes_per_token"])
        mine = {"block_size": size, "num_blocks": blocks}
        passed = run_assignment_task(BLOCK_SIZE, lambda pool, mine=mine: mine, seed, seed).num_right > 0
        held += [size] if passed else []
    assert held
    assert all(size & (size - 1) == 0 for size in held)


@pytest.mark.parametrize("seed", range(4))
def test_empty_slots_are_what_the_trace_calls_reserved_and_internal(seed):
    trace = Trace.from_json(record(crowded_load(seed)))
    found = waste(trace)
    assert measured(trace)["empty_slots"] == found.reserved + found.internal


def refused(top, *lines):
    """The module for which task 5 refuses `measure`, with `top` at notebook level and `lines` in the function."""
    names = {"__name__": "notebook"}
    exec("\n    ".join([top + "\ndef measure(trace):", *lines]), names)
    return foreign_module(names["measure"], (*STANDARD_IMPORTS, *WASTE.allowed_imports))


@pytest.mark.parametrize(
    ("top", "line", "end"),
    [
        ("from servelab.trace import {}", "", "{}"),
        ("", "from servelab.trace import {}", "{}"),
        ("", "from servelab.trace import {} as x", "x"),
        ("import servelab.trace as st", "", "st.{}"),
        ("", "import servelab.trace as st", "st.{}"),
        ("import servelab.trace", "", "servelab.trace.{}"),
        ("", "import servelab.trace", "servelab.trace.{}"),
        ("", "import servelab.trace.event", "servelab.trace.{}"),
        ("from servelab import trace as st", "", "(lambda: st.{})()"),
    ],
)
def test_events_may_be_imported_each_way_and_our_counts_not(top, line, end):
    def found(name):
        use = f"[{end.format(name)} for event in trace.steps[0].events]"
        return refused(top.format(name), line.format(name) or "pass", use)

    assert not any(map(found, ("Admit", "Wait", "State", "Trace")))
    assert found("waste") == found("occupancy") == "servelab.trace.occupancy"


def test_other_parts_of_servelab_stay_refused():
    assert refused("import servelab.cache", "return servelab.cache") == "servelab.cache"
    assert refused("", "import servelab.cache.pool").startswith("servelab.cache")
    assert refused("import servelab", "return servelab.costs.holes").startswith("servelab.costs")
    helper = "def helper():\n    return st.waste\n"
    assert refused("import servelab.trace as st\n" + helper, "return helper()") == "servelab.trace.occupancy"
