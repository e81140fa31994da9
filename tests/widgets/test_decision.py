"""Questions and answers come from the trace, and every wrong answer has a reason."""

from servelab.engine import allocation_trace
from servelab.widgets.decision import admission, admission_decision, admission_steps


def test_one_request_two_pools(holes_contiguous, holes_paged):
    decision = admission_decision([holes_contiguous, holes_paged], ["rows", "blocks"], 6)
    assert decision.answer == "second"
    assert [identity for identity, _label in decision.choices] == ["both", "first", "second", "none"]
    assert "9 slots in a row (rows) or 3 blocks (blocks)" in decision.prompt
    right, text = decision.verdict("both")
    assert not right
    assert "free: 19, but the longest run has only 7" in text
    assert "Blocks needed: 3; free: 4" in text


def test_what_was_free_is_counted_before_the_admission(holes_contiguous, holes_paged):
    fourth = admission(holes_contiguous, 3)
    assert (fourth.admitted, fourth.needed, fourth.free, fourth.largest) == (True, 7, 12, 12)
    fourth = admission(holes_paged, 3)
    assert (fourth.admitted, fourth.needed, fourth.free) == (True, 2, 2)
    assert admission(holes_paged, 4) is None
    assert admission(holes_paged, 99) is None


def test_a_single_pool_asks_admit_or_wait(holes_contiguous):
    decision = admission_decision([holes_contiguous], ["pool"], 6)
    assert decision.answer == "wait"
    assert decision.verdict("wait")[0]
    assert admission_decision([holes_contiguous], ["pool"], 4) is None


def test_each_refusal_is_asked_once():
    operations = [
        ("place", "A", 12),
        ("place", "B", 8),
        ("append", "A", 1),
        ("place", "B", 8),
        ("free", "A"),
        ("place", "B", 8),
    ]
    trace = allocation_trace(operations, kv_cache="paged", num_slots=16, block_size=4)
    assert admission_steps([trace]) == [1]
    assert admission(trace, 1).because() == "Blocks needed: 2; free: only 1."
