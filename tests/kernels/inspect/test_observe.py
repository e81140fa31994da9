"""What the interpreter's watch says of a kernel: bytes, programs, and each kind of fault, with where it is."""

import json

import pytest
import torch

from servelab.kernels import flash_attention, silu_and_mul
from servelab.kernels.inspect import Worker, WorkerFailed, observe
from servelab.kernels.language import tl, triton
from servelab.kernels.launch import launch
from servelab.trace.kernel import KernelRecord
from tests.kernels.conftest import randn


@triton.jit
def _shift(x, out, n, BY: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr, STEP: tl.constexpr):
    places = tl.program_id(0) * STEP + tl.arange(0, SIZE)
    if MASKED:
        numbers = tl.load(x + places + BY, mask=places < n, other=0.0)
        tl.store(out + places, numbers, mask=places < n)
    else:
        numbers = tl.load(x + places + BY)
        tl.store(out + places, numbers)


def shift(x, by=0, masked=True, step=4, num_programs=3, into=None):
    """out[i] = x[i + by], four numbers a program."""
    out = torch.empty_like(x) if into is None else into
    launch(_shift, (num_programs,), x.device, x, out, len(x), BY=by, SIZE=4, MASKED=masked, STEP=step)
    return out


@triton.jit
def _sum(x, out):
    tl.atomic_add(out, tl.load(x + tl.program_id(0)))


def atomic_sum(x):
    out = torch.zeros(1)
    launch(_sum, (len(x),), x.device, x, out)
    return out


def crash():
    import os

    os._exit(3)


def fail():
    raise KeyError("a reason")


def test_counts_what_each_program_loads_and_stores(interpreter):
    seen = observe(shift, torch.arange(10.0), worker=interpreter)
    record = seen.record
    assert torch.equal(seen.result, torch.arange(10.0))
    assert (record.kernel, record.grid) == ("shift", (3, 1, 1))
    assert record.constants == {"BY": 0, "SIZE": 4, "MASKED": True, "STEP": 4}
    assert [program.id for program in record.programs] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    load, store = record.programs[2].accesses
    assert (load.kind, load.tensor, load.num_elements, load.num_bytes, load.ranges) == ("load", "x", 2, 8, ((8, 10),))
    assert (store.kind, store.tensor, store.ranges) == ("store", "out", ((8, 10),))
    assert record.loaded_bytes() == record.loaded_bytes("x") == record.stored_bytes("out") == 40
    assert record.loaded_bytes("out") == 0
    assert record.faults == ()
    assert (record.tensor("out").num_stored, record.tensor("out").came_empty) == (10, True)
    assert not record.tensor("x").came_empty
    with pytest.raises(ValueError, match=r"a tensor in \['x', 'out'\], got 'y'"):
        record.tensor("y")


def test_an_address_outside_of_every_tensor_is_named_and_not_followed(interpreter):
    """The program, the line, the element, the lane and the mask; a load there gives 0."""
    seen = observe(shift, torch.arange(1.0, 11.0), by=3, worker=interpreter)
    (fault,) = seen.record.faults
    assert seen.result.tolist() == [4, 5, 6, 7, 8, 9, 10, 0, 0, 0]
    assert (fault.kind, fault.program, fault.tensor) == ("out of bounds", (1, 0, 0), "x")
    assert (fault.element, fault.size, fault.lane, fault.masked, fault.count) == (10, 10, (3,), 0, 1)
    assert fault.text == "numbers = tl.load(x + places + BY, mask=places < n, other=0.0)"
    said = str(fault)
    assert "element 10 of x, which has elements 0 to 9" in said
    assert "program (1, 0, 0), line" in said
    assert "lane [3] of the tile, with a mask that holds back 0 lanes; 1 lanes in all" in said
    before = observe(shift, torch.arange(1.0, 11.0), by=-2, worker=interpreter).record.faults[0]
    assert before.element == -2


def test_a_missing_mask_shows_at_loads_and_stores(interpreter):
    faults = observe(shift, torch.arange(10.0), masked=False, worker=interpreter).record.faults
    assert [(fault.tensor, fault.element, fault.masked, fault.count) for fault in faults] == [
        ("x", 10, None, 2),
        ("out", 10, None, 2),
    ]
    assert "with no mask" in str(faults[0])


def test_a_stride_that_leaves_the_view_shows_though_it_is_memory_of_the_tensor(interpreter):
    """Every second number is the neighbour's."""
    both = torch.arange(20.0).view(10, 2)
    (fault,) = observe(shift, both[:, 0], worker=interpreter).record.faults
    assert (fault.kind, fault.tensor, fault.element, fault.size) == ("out of bounds", "x", 1, 19)


def test_an_address_past_the_end_is_not_taken_for_the_neighbour_in_memory(interpreter):
    """K and V in one tensor: what is read past the end of K lies in V, and is wrong all the same."""
    both = torch.arange(20.0).view(2, 10)
    faults = observe(shift, both[0], by=3, into=both[1], worker=interpreter).record.faults
    assert [(fault.kind, fault.tensor, fault.element) for fault in faults] == [("out of bounds", "x", 10)]


def test_two_programs_that_store_to_one_address_are_named(interpreter):
    (fault,) = observe(shift, torch.arange(10.0), step=3, worker=interpreter).record.faults
    assert (fault.kind, fault.program, fault.other, fault.element) == ("race", (1, 0, 0), (0, 0, 0), 3)
    assert "element 3 of out was stored by program (0, 0, 0) too" in str(fault)
    assert observe(atomic_sum, torch.arange(5.0), worker=interpreter).record.faults == ()


def test_what_nobody_wrote_shows_in_the_result_and_where_it_is_loaded(interpreter):
    seen = observe(shift, torch.arange(10.0), num_programs=2, worker=interpreter)
    assert seen.record.tensor("out").num_stored == 8
    assert seen.result[8:].isnan().all()
    seen = observe(shift_twice, torch.arange(10.0), worker=interpreter)
    assert seen.records[0].faults == ()
    (fault,) = seen.records[1].faults
    assert (fault.kind, fault.tensor, fault.element) == ("never written", "x", 8)
    assert "nothing has written it" in str(fault)


def shift_twice(x):
    return shift(shift(x, num_programs=2))


def test_atomic_operations_load_and_store(interpreter):
    seen = observe(atomic_sum, torch.arange(5.0), worker=interpreter)
    assert seen.result.item() == 10
    assert seen.record.loaded_bytes("out") == seen.record.stored_bytes("out") == 20


def test_tensors_of_the_caller_are_written_to_and_share_what_they_shared(interpreter):
    both = torch.zeros(2, 10)
    observe(shift, torch.arange(10.0), into=both[1], worker=interpreter)
    assert both.tolist() == [[0.0] * 10, list(range(10))]


def test_an_error_is_raised_here_and_the_process_goes_on(interpreter):
    with pytest.raises(ValueError, match=r"expected \[..., 2 I\], got \[3\]"):
        observe(silu_and_mul, torch.zeros(3), worker=interpreter)
    with pytest.raises(KeyError, match="a reason"):
        observe(fail, worker=interpreter)
    assert observe(shift, torch.arange(10.0), worker=interpreter).record.faults == ()


def test_a_process_that_ends_is_said_and_replaced():
    worker = Worker("interpret")
    with pytest.raises(WorkerFailed, match="the process in which kernels are run ended"):
        observe(crash, worker=worker)
    assert observe(shift, torch.arange(10.0), worker=worker).record.faults == ()
    worker.close()
    with pytest.raises(ValueError, match="expected kind in"):
        Worker("run")


def test_several_launches_have_no_one_record(interpreter):
    with pytest.raises(ValueError, match=r"expected one launch, got \['shift', 'shift'\]"):
        _ = observe(shift_twice, torch.arange(8.0), worker=interpreter).record


def test_a_record_is_saved_and_read_again(interpreter, tmp_path):
    record = observe(shift, torch.arange(10.0), by=1, step=3, worker=interpreter).record
    assert len(record.faults) == 2
    path = record.save(tmp_path / "record.json")
    assert KernelRecord.load(path) == record
    data = json.loads(path.read_text())
    for broken in (
        {**data, "version": 2},
        {**data, "grid": [1]},
        {"format": "x"},
        [],
        {k: data[k] for k in ("format", "version")},
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match="expected"):
            KernelRecord.load(path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match="expected"):
        KernelRecord.load(path)


def test_a_launch_of_an_operator(interpreter):
    record = observe(flash_attention, randn(5, 2, 16), randn(5, 1, 16), randn(5, 1, 16), worker=interpreter).record
    assert record.grid == (1, 2, 1)
    assert record.constants["GROUP"] == 2
    assert {tensor.name for tensor in record.tensors} == {"q", "k", "v", "out", "lse", "query_starts", "key_starts"}
