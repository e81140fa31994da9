"""Which slots each program touched."""

import pytest

from servelab.figures import kernel_access
from servelab.trace.kernel import Access, KernelRecord, ProgramRecord


def make(*programs):
    """programs: for each, the ranges of elements that it loaded from keys."""
    return KernelRecord(
        kernel="paged_attention",
        grid=(len(programs), 1, 1),
        constants={},
        tensors=(),
        programs=tuple(
            ProgramRecord(
                (i, 0, 0),
                (Access("load", "keys", 1, 4, 16, tuple(ranges)), Access("load", "values", 2, 1, 4, ((999, 1000),))),
            )
            for i, ranges in enumerate(programs)
        ),
        faults=(),
    )


def test_a_row_a_program_and_a_column_a_slot():
    figure = kernel_access(
        make([(0, 4), (12, 14)], [(4, 8)]),
        "keys",
        slot_elements=4,
        num_slots=8,
        block_size=2,
        names={1: "A 0"},
        sentence="so",
    )
    assert [list(row.x) for row in figure.data] == [[0.5, 3.5], [1.5]]
    assert [list(place) for place in figure.data[0].customdata] == [[0, 0], [1, 1]]
    assert list(figure.layout.yaxis.ticktext) == ["program (0, 0, 0)", "program (1, 0, 0)"]
    assert list(figure.layout.xaxis.ticktext) == ["0", "1<br>A 0", "2", "3"]
    assert figure.layout.meta["sentence"] == figure.layout.meta["alt"] == "so"


def test_only_programs_that_touch_the_tensor_have_a_row():
    figure = kernel_access(make([(0, 4)], []), "keys", slot_elements=4, num_slots=8, block_size=4, programs=["head 0"])
    assert list(figure.layout.yaxis.ticktext) == ["head 0"]


@pytest.mark.parametrize("record", [make(), make(*[[(0, 4)]] * 25)])
def test_none_or_too_many_programs_are_refused(record):
    with pytest.raises(ValueError, match="expected 1 to 24 programs that load keys, got"):
        kernel_access(record, "keys", slot_elements=4, num_slots=8, block_size=4)
