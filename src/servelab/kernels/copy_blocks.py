"""Copy blocks of a KV cache: what copy-on-write costs, when a sequence is about to write into a block that others read.

    cache [R, P, ...], R tensors of P blocks (K and V of every layer)        for each pair (source, target), each r:
    pairs [N, 2]                                                             cache[r, target] = cache[r, source]

A block is bytes: the kernel copies words of 4 and knows neither dtype nor heads. One program copies WORDS words of
one block of one tensor. Bytes requested: 2 R block_bytes a pair, and 16 a program for the pair.
"""

import math

import torch
from torch import Tensor

from servelab.kernels.language import tl, triton
from servelab.kernels.launch import can_launch, ceil_div, launch
from servelab.kernels.shape import check_indices

WORDS = 1024


def copy_blocks_reference(cache: Tensor, pairs: Tensor) -> None:
    """What `copy_blocks` does, in plain PyTorch."""
    cache[:, pairs[:, 1].long()] = cache[:, pairs[:, 0].long()]


@triton.jit
def _copy_blocks(cache, pairs, row_stride, block_stride, num_words, WORDS: tl.constexpr):
    part, row, pair = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    source = tl.load(pairs + 2 * pair).to(tl.int64)
    target = tl.load(pairs + 2 * pair + 1).to(tl.int64)
    words = part * WORDS + tl.arange(0, WORDS)
    block = cache + row * row_stride + words
    tl.store(
        block + target * block_stride,
        tl.load(block + source * block_stride, mask=words < num_words),
        mask=words < num_words,
    )


def copy_blocks(cache: Tensor, pairs: Tensor) -> None:
    """Copy block ``pairs[i, 0]`` over block ``pairs[i, 1]`` in each of R tensors, in place.

    cache: [R, P, ...] of any dtype, each block contiguous; it may be a view. pairs: int32 or int64 [N, 2] of blocks in
    0 .. P - 1. Targets are different, and none is a source: the copies have no order.
    Runs on a GPU or in Triton's interpreter; elsewhere the reference computes. Raises ValueError for shapes and (on a
    CPU) blocks that do not fit.
    """
    if cache.dim() < 3 or not cache[:1, :1].is_contiguous():
        raise ValueError(
            f"expected cache [R, P, ...] with contiguous blocks, got {list(cache.shape)} with stride {cache.stride()}"
        )
    check_indices("pairs", pairs, (None, 2), cache.device)
    num_rows, num_blocks = cache.shape[:2]
    if not cache.is_cuda and len(pairs):
        if pairs.min() < 0 or pairs.max() >= num_blocks:
            raise ValueError(f"expected blocks in 0..{num_blocks - 1}, got {int(pairs.min())}..{int(pairs.max())}")
        targets = pairs[:, 1]
        if len(targets.unique()) < len(targets) or torch.isin(targets, pairs[:, 0]).any():
            raise ValueError(f"expected targets that differ and are no sources, got {pairs.tolist()}")
    if not can_launch(cache):
        copy_blocks_reference(cache, pairs)
        return
    block_bytes = math.prod(cache.shape[2:]) * cache.itemsize
    words = _as_words(cache, block_bytes)
    pairs = pairs.contiguous()
    num_words = block_bytes // words.itemsize
    launch(
        _copy_blocks,
        (ceil_div(num_words, WORDS), num_rows, len(pairs)),
        cache.device,
        *(words, pairs, words.stride(0), words.stride(1), num_words),
        WORDS=WORDS,
        num_warps=4,
    )


def _as_words(cache: Tensor, block_bytes: int) -> Tensor:
    """The cache as int32 words, or as bytes where a block is no whole number of them: [R, P, words]."""
    strides = [stride * cache.itemsize for stride in cache.stride()[:2]]
    word = torch.int32 if not any(n % 4 for n in (block_bytes, cache.data_ptr(), *strides)) else torch.uint8
    flat = torch.empty(0, dtype=word, device=cache.device)
    start = cache.storage_offset() * cache.itemsize // word.itemsize
    shape = (*cache.shape[:2], block_bytes // word.itemsize)
    flat.set_(cache.untyped_storage(), start, shape, (*(n // word.itemsize for n in strides), 1))
    return flat
