"""`observe_kernel`: a learner's own kernel, right and wrong, never a crash."""

import pytest
import torch

from servelab.kernels.inspect import observe_kernel
from servelab.kernels.language import tl, triton

HALF = 0.5
NOTEBOOK = """
FACTOR = 3.0

@triton.jit
def scaled(x):
    return x * FACTOR

@triton.jit
def triple(x, out, n, SIZE: tl.constexpr):
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + places, scaled(tl.load(x + places)), mask=places < n)
"""


@triton.jit
def _halve(x, out, n, SIZE: tl.constexpr):
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + places, tl.load(x + places, mask=places < n) * HALF, mask=places < n)


@triton.jit
def _broken(x, out):
    tl.store(out, tl.load(x) + undefined_name)  # noqa: F821


def test_a_kernel_of_a_file(interpreter):
    x, out = torch.arange(10.0), torch.zeros(10)
    record = observe_kernel(_halve, (3,), x, out, 10, SIZE=4, worker=interpreter).record
    assert torch.equal(out, x / 2)
    assert record.faults == ()
    assert (record.kernel, record.loaded_bytes("x"), record.stored_bytes("out")) == ("halve", 40, 40)


def test_a_kernel_of_a_notebook_with_a_wrong_index(interpreter, tmp_path):
    """It names the program, the element, the lane, the mask and the line of the cell."""
    cell = tmp_path / "cell.py"
    cell.write_text(NOTEBOOK)
    namespace = {"triton": triton, "tl": tl}
    exec(compile(NOTEBOOK, str(cell), "exec"), namespace)
    x, out = torch.arange(10.0), torch.zeros(10)
    seen = observe_kernel(namespace["triple"], (3,), x, out, 10, SIZE=4, worker=interpreter)
    assert torch.equal(out, 3 * x)
    (fault,) = seen.record.faults
    assert (fault.kind, fault.tensor, fault.element, fault.program) == ("out of bounds", "x", 10, (2, 0, 0))
    assert (fault.line, fault.masked, fault.count) == (11, None, 2)
    assert fault.text == "tl.store(out + places, scaled(tl.load(x + places)), mask=places < n)"


def test_a_wild_pointer_does_not_crash(interpreter):
    x, out = torch.arange(4.0), torch.zeros(4)
    record = observe_kernel(_halve, (1,), x, out, 2**40, SIZE=2**16, worker=interpreter).record
    assert [fault.kind for fault in record.faults] == ["out of bounds", "out of bounds"]
    assert {fault.count for fault in record.faults} == {2**16 - 4}
    assert torch.equal(out, x / 2)


def test_an_error_in_the_kernel_is_raised(interpreter):
    with pytest.raises(Exception, match="undefined_name"):
        observe_kernel(_broken, (1,), torch.zeros(1), torch.zeros(1), worker=interpreter)
    assert (
        observe_kernel(_halve, (1,), torch.ones(1), torch.zeros(1), 1, SIZE=1, worker=interpreter).record.faults == ()
    )


@pytest.mark.parametrize("grid", [3, (), (0,), (1, 1, 1, 1), (2.0,), [2]])
def test_refuses_a_grid_that_is_none(grid):
    with pytest.raises(ValueError, match="expected grid as a tuple of one to three positive integers"):
        observe_kernel(_halve, grid, torch.zeros(1))


def test_refuses_what_is_no_kernel(interpreter):
    with pytest.raises(ValueError, match=r"expected a function with @triton\.jit, got int"):
        observe_kernel(3, (1,))
    namespace = {}
    exec("def nowhere(x): pass", namespace)
    with pytest.raises(ValueError, match="a kernel whose text can be read, got nowhere"):
        observe_kernel(namespace["nowhere"], (1,), torch.zeros(1))
    with pytest.raises(ValueError, match="at least one tensor"):
        observe_kernel(_halve, (1,), 1, 2, 3, SIZE=1, worker=interpreter)
