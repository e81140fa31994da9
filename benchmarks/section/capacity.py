"""Requests and tokens that the same memory holds: by KV format, and paged against contiguous.

Formats: blocks are made for the same bytes in each format, scales counted. Paged against contiguous, on the committed
workload (`servelab.costs.workload`): how many of its requests, each with all its tokens, the cache managers place
before the first is refused; and how many run at once when the engine serves them, all waiting from the start. The
second is less: a long request stays longer, so those that run are longer than those that arrive. The network is a toy:
lengths matter here, not words.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.bench import Bench
from benchmarks.report import Measurement, Result, Target
from servelab.cache import KV_FORMATS, ContiguousCacheManager, KVCacheManager, KVStorage
from servelab.cache.storage import kv_bytes_per_token
from servelab.costs import RequestLength, workload
from servelab.engine import Engine, EngineConfig
from servelab.model import Model, ModelConfig, random_model
from servelab.sampling import SamplingParams

POOL_BYTES = 512 * 2**20
BLOCK_SIZE = 16
LONGEST, MEAN = 2048, 300
BARS = {"int8": 1.9, "fp8_e4m3": 1.95, "fp8_e5m2": 1.95}
HELD_BAR, WASTE_BAR = 0.9 * LONGEST / MEAN, 4.0


@dataclass(frozen=True)
class Pressure:
    """What a pool held each time that a request waited for memory. waste: percent of held slots without a token."""

    held: list[int]
    waste: list[float]

    def look(self, num_requests: int, used: int, rounding: int) -> None:
        """used: slots, or their bytes, that hold tokens of requests; rounding: those that only belong to them."""
        self.held.append(num_requests)
        self.waste.append(100 * rounding / (used + rounding))


def run(bench: Bench, lengths: Sequence[RequestLength] | None = None, num_slots: int | None = None) -> Result:
    measurements, targets = formats(bench)
    num_slots = num_slots or POOL_BYTES // (2 * bench.model.spec.kv_elements_per_token)
    lengths = lengths or workload(150 if bench.quick else 500, mean_tokens=MEAN, max_tokens=LONGEST)
    for how, count, bar in (("placed", place, HELD_BAR), ("served", serve, None)):
        pressures = {}
        for kv_cache in ("paged", "contiguous"):
            bench.tell(f"{len(lengths)} requests {how} in a {kv_cache} pool of {num_slots:,} slots")
            pressure = pressures[kv_cache] = count(kv_cache, lengths, num_slots)
            case = {"kv_cache": kv_cache, "requests": how}
            measurements.append(Measurement("requests held", "requests", tuple(map(float, pressure.held)), case))
            measurements.append(Measurement("waste", "%", (statistics.mean(pressure.waste),), case))
        waste = statistics.mean(pressures["paged"].waste)
        targets.append(Target(f"waste, paged, requests {how}", waste, "<=", WASTE_BAR, "%"))
        more = statistics.mean(pressures["paged"].held) / statistics.mean(pressures["contiguous"].held)
        name = f"requests {how}, paged against contiguous"
        measurements.append(Measurement(name, "x", (more,)))
        if bar is not None:
            targets.append(Target(name, more, ">=", bar))
    settings = {"num_slots": num_slots, "block_size": BLOCK_SIZE, "requests": len(lengths), "reserved": LONGEST}
    return Result(tuple(measurements), tuple(targets), settings)


def formats(bench: Bench) -> tuple[list[Measurement], list[Target]]:
    """Tokens in `POOL_BYTES` by format, beside a cache of 16-bit numbers."""
    config = bench.model.config
    shape = (config.num_layers, config.num_kv_heads, config.head_dim)
    tokens = {}
    for format in KV_FORMATS:
        bench.tell(f"{format} in {POOL_BYTES:,} bytes")
        block_bytes = BLOCK_SIZE * kv_bytes_per_token(*shape, torch.bfloat16, format)
        static_bytes = 8 * config.num_layers * config.num_kv_heads if format.startswith("fp8") else 0
        num_blocks = (POOL_BYTES - static_bytes) // block_bytes
        storage = KVStorage(config.num_layers, num_blocks, BLOCK_SIZE, *shape[1:], torch.bfloat16, format=format)
        if not POOL_BYTES - block_bytes < storage.memory() <= POOL_BYTES:
            raise RuntimeError(f"expected {format} to fill {POOL_BYTES} bytes, got {storage.memory()}")
        tokens[format] = num_blocks * BLOCK_SIZE
    names = {"auto": "bfloat16"}
    measurements = [
        Measurement("tokens in 512 MiB", "tokens", (float(count),), {"format": names.get(format, format)})
        for format, count in tokens.items()
    ]
    targets = [
        Target(f"tokens in the same bytes, {format} against 16 bit", tokens[format] / tokens["auto"], ">=", bar)
        for format, bar in BARS.items()
    ]
    return measurements, targets


def place(kv_cache: str, lengths: Sequence[RequestLength], num_slots: int) -> Pressure:
    """Give requests room for all their tokens, in order of arrival, until one is refused.

    Then the pool is emptied, and that one is the first in it. Raises ValueError when the pool is never full.
    """
    manager = make_manager(kv_cache, num_slots, longest_allowed(lengths))
    pressure = Pressure([], [])
    num_tokens = {str(number): length.num_tokens for number, length in enumerate(lengths)}
    for request_id, needed in num_tokens.items():
        if not manager.can_allocate(request_id, needed):
            held = manager.request_ids
            used, slots = sum(num_tokens[one] for one in held), sum(map(manager.num_slots_held, held))
            pressure.look(len(held), used, slots - used)
            for finished in held:
                manager.free(finished)
        manager.allocate(request_id, needed)
    return checked(pressure, lengths)


def serve(kv_cache: str, lengths: Sequence[RequestLength], num_slots: int) -> Pressure:
    """Serve requests of these lengths from one pool; look at it after each step in which somebody waits for memory."""
    longest = longest_allowed(lengths)
    config = EngineConfig(
        num_blocks=num_slots // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_seqs=len(lengths),
        max_num_batched_tokens=8192,
        prefix_caching=False,
        kv_cache=kv_cache,
    )
    engine = Engine(tiny_model(longest), config)
    for length in lengths:
        params = SamplingParams(max_tokens=length.output_tokens, ignore_eos=True)
        engine.add_request([1] * length.prompt_tokens, params)
    pressure = Pressure([], [])
    while engine.scheduler.waiting:
        engine.step()
        if engine.scheduler.waiting and engine.scheduler.running:
            memory = engine.cache.memory()
            pressure.look(len(engine.scheduler.running), memory.used, memory.rounding)
    return checked(pressure, lengths)


def checked(pressure: Pressure, lengths: Sequence[RequestLength]) -> Pressure:
    if not pressure.held:
        raise ValueError(f"expected more requests than the pool holds at once, got {len(lengths)}")
    return pressure


def longest_allowed(lengths: Sequence[RequestLength]) -> int:
    """Tokens a request may have, which the contiguous cache reserves; less where a small pool is tried."""
    return LONGEST if max(length.num_tokens for length in lengths) > 512 else 512


def make_manager(kv_cache: str, num_slots: int, longest: int) -> KVCacheManager | ContiguousCacheManager:
    if kv_cache == "paged":
        return KVCacheManager(num_slots // BLOCK_SIZE, BLOCK_SIZE)
    return ContiguousCacheManager(num_slots, max_model_len=longest)


def tiny_model(context: int) -> Model:
    """The smallest network that the engine can serve."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=257,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_query_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_context=context,
        tie_word_embeddings=True,
        eos_token_ids=(256,),
    )
    return random_model(config)
