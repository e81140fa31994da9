"""Memory in huge pages: where it lies, who shares it, and that it goes back."""

import gc
import mmap
import weakref

import pytest
import torch

from servelab.model import toy_model
from servelab.ops import Linear, arena, huge_empty
from servelab.ops.arena import HUGE, Arena


def test_it_can_be_written_from_end_to_end():
    for num_bytes in (0, 1, HUGE - 1, HUGE, 3 * HUGE + 5):
        memory = huge_empty(num_bytes)
        assert memory.dtype == torch.uint8
        assert memory.shape == (num_bytes,)
        assert int(memory.fill_(7).sum(dtype=torch.int64)) == 7 * num_bytes


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on this system")
def test_large_memory_begins_at_a_huge_page_and_asks_for_them(monkeypatch):
    asked = []

    class Map(mmap.mmap):
        def madvise(self, *arguments):
            asked.append(arguments)
            return super().madvise(*arguments)

    monkeypatch.setattr(arena.mmap, "mmap", Map)
    assert huge_empty(HUGE).data_ptr() % HUGE == 0
    assert huge_empty(HUGE - 1).numel() == HUGE - 1
    assert asked == [(mmap.MADV_HUGEPAGE,)]


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch):
    class Map(mmap.mmap):
        def madvise(self, *arguments):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(arena.mmap, "mmap", Map)
    assert int(huge_empty(HUGE).fill_(1).sum(dtype=torch.int64)) == HUGE


def test_a_system_without_the_call_gives_pytorchs_own(monkeypatch):
    monkeypatch.delattr(arena.mmap, "MADV_HUGEPAGE", raising=False)
    assert huge_empty(HUGE).shape == (HUGE,)


def test_more_than_there_is_is_refused():
    with pytest.raises(RuntimeError, match=r"expected 4,611,686,018,427,387,904 bytes of memory, got"):
        huge_empty(2**62)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on this system")
def test_it_goes_back_when_the_last_tensor_is_gone(monkeypatch):
    """A mapping is unmapped when Python lets go of it; every tensor that lies in it holds it."""
    maps = []

    class Map(mmap.mmap):
        def __init__(self, *arguments, **options):
            maps.append(weakref.ref(self))

    monkeypatch.setattr(arena.mmap, "mmap", Map)
    whole = huge_empty(2 * HUGE)
    part = whole[:HUGE].view(torch.float32)
    del whole
    gc.collect()
    assert maps[0]() is not None
    del part
    gc.collect()
    assert maps[0]() is None


def test_tensors_lie_beside_each_other_and_apart():
    room = Arena(4096)
    first, second = room.empty((3, 5), torch.float32), room.empty((7,), torch.bfloat16)
    assert (first.shape, second.shape) == ((3, 5), (7,))
    assert second.data_ptr() - first.data_ptr() == 64
    first.fill_(1.0)
    second.fill_(2.0)
    assert first.eq(1.0).all()
    assert second.eq(2.0).all()


def test_an_arena_grows():
    room = Arena(128)
    tensors = [room.empty((25,), torch.float32).fill_(number) for number in range(6)]
    large = room.empty((1000,), torch.float32).fill_(9.0)
    assert all(tensor.eq(number).all() for number, tensor in enumerate(tensors))
    assert large.eq(9.0).all()


def test_the_weights_of_a_network_share_rooms():
    linears = [module for module in toy_model().network.modules() if isinstance(module, Linear)]
    if any(linear.form != "panels" for linear in linears):
        pytest.skip("no compiled kernels here")
    rooms = {linear.weight.untyped_storage().data_ptr() for linear in linears}
    assert len(rooms) <= 3 < len(linears)  # of 16-bit weights it would be one
