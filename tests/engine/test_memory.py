"""The size of the pool: blocks, bytes or a share of the free memory; and the longest request."""

import pytest
import torch

from servelab.cache import ContiguousCacheManager
from servelab.engine import EngineConfig, memory


def test_blocks_are_taken_as_they_are(make_engine):
    assert make_engine(num_blocks=7).cache.pool.num_blocks == 7


def test_bytes_hold_whole_blocks(make_engine, toy_model):
    block_bytes = 4 * toy_model.kv_bytes_per_token
    engine = make_engine(kv_cache_bytes=3 * block_bytes + 1)
    assert engine.cache.pool.num_blocks == 3
    assert engine.storage.memory() == 3 * block_bytes


def test_bytes_for_less_than_a_block_are_refused(make_engine, toy_model):
    block_bytes = 4 * toy_model.kv_bytes_per_token
    message = rf"expected kv_cache_bytes >= {block_bytes} \(one block of 4 tokens\), got {block_bytes - 1}"
    with pytest.raises(ValueError, match=message):
        make_engine(kv_cache_bytes=block_bytes - 1)


def test_by_default_the_pool_is_what_all_seats_can_use(toy_model):
    """The toy model's context of 512 tokens on 2 seats is small: the share of the memory does not matter."""
    assert memory.pool_blocks(toy_model, EngineConfig(max_num_seqs=2)) == 2 * 512 // 16
    assert memory.pool_blocks(toy_model, EngineConfig(max_num_seqs=2, max_model_len=100)) == 2 * 7


def test_by_default_the_pool_is_capped_by_the_memory(toy_model, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 5 * 16 * toy_model.kv_bytes_per_token)
    assert memory.pool_blocks(toy_model, EngineConfig()) == 5


def test_on_a_cpu_the_share_is_a_quarter_and_at_most_512_mib(toy_model, monkeypatch):
    for available, expected in ((2**30, 2**28), (2**40, 2**29)):
        free = type("Memory", (), {"available": available})
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda free=free: free)
        assert memory.free_bytes(toy_model.device) == expected


def test_on_a_gpu_the_share_is_four_fifths(monkeypatch):
    monkeypatch.setattr(memory.torch.cuda, "mem_get_info", lambda device: (10_000, 80_000))
    assert memory.available_bytes(torch.device("cuda")) == 10_000
    assert memory.free_bytes(torch.device("cuda")) == 8_000


def test_the_longest_request_is_the_context_or_the_pool(make_engine):
    assert make_engine(num_blocks=200).max_model_len == 512
    assert make_engine(num_blocks=10).max_model_len == 40
    assert make_engine(num_blocks=10, max_model_len=30).max_model_len == 30


def test_a_limit_beyond_the_context_is_refused(make_engine):
    with pytest.raises(ValueError, match=r"expected max_model_len <= 512 \(the context of random-llama\), got 513"):
        make_engine(max_model_len=513)


def test_a_contiguous_pool_has_as_many_slots_as_the_paged_one(make_engine):
    engine = make_engine(num_blocks=10, kv_cache="contiguous", reserve="exact")
    assert isinstance(engine.cache, ContiguousCacheManager)
    assert (engine.cache.num_slots, engine.trace.num_blocks, engine.trace.block_size) == (40, 40, 1)
    assert engine.storage.memory() == make_engine(num_blocks=10).storage.memory()


def test_a_maximum_that_the_pool_cannot_reserve_is_refused(make_engine):
    with pytest.raises(ValueError, match=r"expected max_model_len in 1..40 \(num_slots\) to reserve it, got 41"):
        make_engine(num_blocks=10, kv_cache="contiguous", max_model_len=41)


@pytest.mark.parametrize(
    "config",
    [
        {"num_blocks": 10**9},
        {"num_blocks": 10**30},
        {"block_size": 10**20, "num_blocks": 1},
        {"kv_cache_bytes": 10**15},
        {"block_size": 10**20, "num_blocks": None},
        {"num_blocks": 10**9, "kv_cache": "contiguous", "reserve": "exact"},
    ],
)
def test_a_pool_beyond_the_free_memory_is_refused_before_it_is_taken(make_engine, config):
    """Linux promises memory that it does not have, and kills the process that writes to it."""
    with pytest.raises(ValueError, match=r"expected a KV pool of at most \d+ bytes \(the free memory\), got"):
        make_engine(**config)
