"""`EngineConfig`: what an engine is built with, checked when it is written down."""

from dataclasses import dataclass

from servelab.cache.contiguous import RESERVES

SCHEDULINGS = ("continuous", "static")
KV_CACHES = ("paged", "contiguous")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Raises ValueError that names the field, what was expected and what came.

    block_size: slots (tokens) of a block.
    num_blocks, kv_cache_bytes: the size of the KV pool; give one of them, or neither for a share of the free
        memory (`servelab.engine.memory`). A contiguous pool has the same ``num_blocks * block_size`` slots.
    max_model_len: prompt and output tokens of one request at most; None is the model's context, or the pool where
        that is smaller.
    scheduling: "continuous" fills a seat as soon as it is free; "static" starts a batch when the last one is over.
    max_num_seqs: requests that run at the same time at most.
    max_num_batched_tokens: tokens computed in one step at most; longer prompts are computed in chunks.
    kv_cache: "paged", or "contiguous": one unbroken range per request.
    reserve: how long that range is: "max" is `max_model_len`, "exact" is prompt + max_tokens. Contiguous only.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    scheduling: str = "continuous"
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    kv_cache: str = "paged"
    reserve: str = "max"

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            check_positive(name, getattr(self, name))
        for name in ("num_blocks", "kv_cache_bytes", "max_model_len"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name, choices in (("scheduling", SCHEDULINGS), ("kv_cache", KV_CACHES), ("reserve", RESERVES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} in {choices}, got {getattr(self, name)!r}")
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError(
                f"expected num_blocks or kv_cache_bytes, got both: {self.num_blocks} and {self.kv_cache_bytes}"
            )


def check_positive(name: str, value: object) -> None:
    """Raise ValueError unless `value` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected {name} to be an integer >= 1, got {value!r}")
