"""Inputs of a paged cache: every block has one owner, and the kernel's result is the reference's."""

import pytest
import torch

from servelab.kernels import QUANTIZED_DTYPES, paged_attention, paged_attention_reference
from servelab.kernels.inspect import PagedInputs


@pytest.mark.parametrize("format", ["auto", *QUANTIZED_DTYPES])
def test_the_kernel_takes_them(format):
    inputs = PagedInputs([9, 33], heads=(4, 2), head_dim=16, queries=3, format=format, dtype=torch.float32)
    out, _ = paged_attention(*inputs.arguments, **inputs.options)
    want, _ = paged_attention_reference(*inputs.arguments, **inputs.stored)
    torch.testing.assert_close(out, want)
    assert out.shape == (6, 4, 16)


def test_no_two_sequences_share_a_block_and_the_order_is_no_row():
    inputs = PagedInputs([33, 16, 100], heads=(1, 1), head_dim=16)
    used = [table[: -(-n // 16)] for table, n in zip(inputs.tables.tolist(), inputs.contexts.tolist(), strict=True)]
    blocks = [block for table in used for block in table]
    assert sorted(blocks) == list(range(11))
    assert blocks != sorted(blocks)


@pytest.mark.parametrize(("format", "num_bytes"), [("auto", 2), ("int8", 1 + 2 / 64), ("fp8_e4m3", 1)])
def test_bytes_are_those_of_the_stored_tokens(format, num_bytes):
    inputs = PagedInputs([100, 17], heads=(4, 2), head_dim=64, format=format)
    assert inputs.num_bytes == 2 * 117 * 2 * 64 * num_bytes
