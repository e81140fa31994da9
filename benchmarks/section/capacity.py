"""Requests and tokens that the same memory holds: by KV format, and paged against contiguous.

Formats: blocks are made for the same bytes in each format, scales counted. Paged against contiguous: the committed
workload (`servelab.costs.workload`) goes through the engine's own scheduler and cache managers, all requests waiting
from the start; counted is who runs at once while others wait. The network is a toy: lengths matter here, not words.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.bench import Bench
from benchmarks.report import Measurement, Result, Target
from servelab.cache import KV_FORMATS, KVStorage
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
    """What a pool held, step by step, while requests waited. waste: percent of held slots that hold no token."""

    running: list[int]
    waste: list[float]


def run(bench: Bench, lengths: Sequence[RequestLength] | None = None, num_slots: int | None = None) -> Result:
    measurements, targets = formats(bench)
    num_slots = num_slots or POOL_BYTES // (2 * bench.model.spec.kv_elements_per_token)
    lengths = lengths or workload(150 if bench.quick else 500, mean_tokens=MEAN, max_tokens=LONGEST)
    held = {}
    for kv_cache in ("paged", "contiguous"):
        bench.tell(f"{len(lengths)} requests through a {kv_cache} pool of {num_slots:,} slots")
        pressure = fill(kv_cache, lengths, num_slots)
        held[kv_cache] = statistics.mean(pressure.running)
        case = {"kv_cache": kv_cache}
        measurements.append(Measurement("requests held", "requests", (held[kv_cache],), case))
        measurements.append(Measurement("waste", "%", (statistics.mean(pressure.waste),), case))
        if kv_cache == "paged":
            targets.append(Target("waste, paged", statistics.mean(pressure.waste), "<=", WASTE_BAR, "%"))
    more = held["paged"] / held["contiguous"]
    measurements.append(Measurement("requests held, paged against contiguous", "x", (more,)))
    targets.append(Target("requests held, paged against contiguous", more, ">=", HELD_BAR))
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


def fill(kv_cache: str, lengths: Sequence[RequestLength], num_slots: int) -> Pressure:
    """Serve requests of these lengths from one pool; look at it after each step in which somebody waits for memory."""
    longest = max(length.num_tokens for length in lengths)
    reserved = LONGEST if longest > 512 else 512
    model = tiny_model(reserved)
    config = EngineConfig(
        num_blocks=num_slots // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_model_len=reserved,
        max_num_seqs=len(lengths),
        max_num_batched_tokens=8192,
        prefix_caching=False,
        kv_cache=kv_cache,
    )
    engine = Engine(model, config)
    for length in lengths:
        params = SamplingParams(max_tokens=length.output_tokens, ignore_eos=True)
        engine.add_request([1] * length.prompt_tokens, params)
    pressure = Pressure([], [])
    while engine.scheduler.waiting:
        engine.step()
        if engine.scheduler.waiting and engine.scheduler.running:
            memory = engine.cache.memory()
            pressure.running.append(len(engine.scheduler.running))
            pressure.waste.append(100 * memory.rounding / (memory.used + memory.rounding))
    if not pressure.running:
        raise ValueError(f"expected more requests than the pool holds at once, got {len(lengths)}")
    return pressure


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
