"""`copy_blocks`: whole blocks, of any dtype and size, in every tensor, and not a byte elsewhere."""

import pytest
import torch

from servelab.kernels import copy_blocks, copy_blocks_reference

PAIRS = torch.tensor([[0, 3], [4, 1], [0, 5]])


def numbers(*shape, dtype):
    x = torch.arange(torch.tensor(shape).prod().item()).view(shape)
    return x.to(dtype) if dtype.is_floating_point else (x % 120).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8])
@pytest.mark.parametrize("inner", [(1,), (4, 2, 16), (3, 59), (16, 3, 64)])
def test_copies_blocks_and_nothing_else(run, dtype, inner):
    cache = numbers(4, 6, *inner, dtype=dtype)
    want = cache.clone()
    for source, target in PAIRS.tolist():
        want[:, target] = cache[:, source]
    for copy in (lambda *args: run(copy_blocks, *args), copy_blocks, copy_blocks_reference):
        mine = cache.clone()
        copy(mine, PAIRS)
        assert torch.equal(mine, want)


def test_through_a_view(run):
    """A half of the pool, and blocks that do not lie behind each other."""
    pool = numbers(2, 3, 6, 2, 8, dtype=torch.float32)
    want = pool.clone()
    copy_blocks_reference(want[1], PAIRS.int())
    run(copy_blocks, pool[1], PAIRS.int())
    assert torch.equal(pool, want)
    wide = numbers(2, 6, 3, 8, dtype=torch.int8)
    want = wide.clone()
    copy_blocks_reference(want[:, :, 1], PAIRS)
    run(copy_blocks, wide[:, :, 1], PAIRS)
    assert torch.equal(wide, want)


def test_no_pairs_no_copies():
    cache = numbers(2, 3, 4, dtype=torch.float32)
    before = cache.clone()
    copy_blocks(cache, torch.zeros(0, 2, dtype=torch.int64))
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    ("cache", "pairs", "message"),
    [
        (torch.zeros(2, 6), PAIRS, r"cache \[R, P, ...\]"),
        (torch.zeros(2, 6, 4, 4).transpose(2, 3), PAIRS, "contiguous blocks"),
        (torch.zeros(2, 6, 4), PAIRS[:, 0], "pairs as int32"),
        (torch.zeros(2, 6, 4), PAIRS.float(), "pairs as int32"),
        (torch.zeros(2, 5, 4), PAIRS, r"blocks in 0..4, got 0..5"),
        (torch.zeros(2, 6, 4), torch.tensor([[-1, 2]]), "blocks in 0..5"),
        (torch.zeros(2, 6, 4), torch.tensor([[0, 2], [1, 2]]), "targets that differ"),
        (torch.zeros(2, 6, 4), torch.tensor([[0, 2], [2, 1]]), "are no sources"),
    ],
)
def test_refuses_what_does_not_fit(cache, pairs, message):
    with pytest.raises(ValueError, match=message):
        copy_blocks(cache, pairs)
