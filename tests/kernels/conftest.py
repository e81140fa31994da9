"""Kernels run in Triton's interpreter, in one child process for all tests of a pytest worker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from servelab.kernels.inspect import Observation, Worker, observe

EPSILON = {torch.float32: 2.0**-23, torch.float16: 2.0**-10}


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Worker]:
    worker = Worker("interpret")
    yield worker
    worker.close()


@pytest.fixture
def run(interpreter: Worker) -> Callable[..., Observation]:
    """Call a launcher in the interpreter. The kernel was launched, read and wrote nothing that it must not, and wrote
    every element of what the launcher took empty."""

    def call(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Observation:
        observation = observe(operator, *args, worker=interpreter, **kwargs)
        assert observation.records, "no kernel was launched"
        for record in observation.records:
            assert not record.faults, "\n".join(map(str, record.faults))
            for tensor in record.tensors:
                assert not tensor.came_empty or tensor.num_stored in (0, tensor.num_elements), tensor
        return observation

    return call


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(got: Tensor, plain: Tensor, exact: Tensor) -> None:
    """16 bit: at most twice the error of PyTorch in the same dtype, or the rounding of the result where that is more.
    float32: sums in another order differ by a few units in the last place of the largest number.

    got: the kernel's; plain: PyTorch's in the same dtype; exact: the same inputs in float64.
    """
    assert got.dtype == plain.dtype
    assert got.shape == plain.shape == exact.shape
    finite = exact.isfinite()
    assert torch.equal(got.isfinite(), finite)
    assert torch.equal(got[~finite].double().nan_to_num(7.0), exact[~finite].nan_to_num(7.0))
    if not finite.any():
        return
    largest = max(1.0, exact[finite].abs().max().item())
    own = (got.double() - exact)[finite].abs().max().item()
    theirs = (plain.double() - exact)[finite].abs().max().item()
    if got.dtype == torch.float32:
        assert own <= 16 * EPSILON[torch.float32] * largest
    else:
        assert own <= max(2 * theirs, EPSILON[got.dtype] / 2 * largest)
