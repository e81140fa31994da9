"""Kernels compile here for GPUs that are not, and the compiler says what they take."""

from collections.abc import Iterator

import pytest
import torch

from servelab.kernels import flash_attention, paged_attention, rms_norm
from servelab.kernels.inspect import SHARED_LIMIT_BYTES, Worker, resources
from servelab.kernels.inspect.catalog import examples


@pytest.fixture(scope="module")
def compiler() -> Iterator[Worker]:
    worker = Worker("compile")
    yield worker
    worker.close()


@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_one_of_each_kind_compiles_and_fits(compiler, target):
    """Attention, quantized decode, and a kernel of the T4's generation and of each after it."""
    dtype = torch.float16 if target < 80 else torch.bfloat16
    wanted = {"flash_attention, D 64, causal", "paged_attention, D 128, fp8_e4m3, decode", "rms_norm, N 4096"}
    found = [example for example in examples(dtype) if example.name in wanted]
    assert {example.operator for example in found} == {flash_attention, paged_attention, rms_norm}
    for example in found:
        (row,) = resources(example.operator, *example.arguments, target=target, worker=compiler, **example.options)
        assert row.fits
        assert 0 < row.registers <= 255
        assert row.threads % 32 == 0
        assert row.target == target


def test_a_target_that_the_table_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"a target in \(75, 80, 89, 90, 100, 120\), got 70"):
        resources(flash_attention, target=70)


def test_names_are_told_apart():
    names = [example.name for example in examples(torch.float16)]
    assert len(set(names)) == len(names)
