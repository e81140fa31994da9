"""`EngineConfig`: what an engine is built with, checked when it is written down."""

from dataclasses import dataclass

from servelab.cache import KV_FORMATS, KVScales
from servelab.cache.contiguous import RESERVES
from servelab.ops.attention import ALGORITHMS
from servelab.speculative import Speculation

SCHEDULINGS = ("continuous", "static")
KV_CACHES = ("paged", "contiguous")
CHOICES = {
    "scheduling": SCHEDULINGS,
    "kv_cache": KV_CACHES,
    "reserve": RESERVES,
    "kv_cache_dtype": KV_FORMATS,
    "attention": ALGORITHMS,
}


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
    prefix_caching: a request begins with the cached blocks of an earlier one that began with the same tokens. Paged
        only.
    kv_cache: "paged", or "contiguous": one unbroken range per request.
    reserve: how long that range is: "max" is `max_model_len`, "exact" is prompt + max_tokens. Contiguous only.
    kv_cache_dtype: how keys and values are stored: "auto" (the model's dtype), "int8", "fp8_e4m3" or "fp8_e5m2".
    kv_scales: static scales for FP8, as `calibrate_kv_scales` finds them; None is 1.0 for all.
    attention: "naive" computes whole matrices of scores, "flash" tile by tile; "auto" is the fastest.
    speculative: who drafts tokens: `NGram`, `DraftModel` or `DraftHead` of `servelab.speculative`; None drafts none.
    record_trace: write every decision into `Engine.trace`, which grows as long as the engine lives: a server, which
        lives long, does without.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    scheduling: str = "continuous"
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    prefix_caching: bool = True
    kv_cache: str = "paged"
    reserve: str = "max"
    kv_cache_dtype: str = "auto"
    kv_scales: KVScales | None = None
    attention: str = "auto"
    speculative: Speculation | None = None
    record_trace: bool = True

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            check_positive(name, getattr(self, name))
        for name in ("num_blocks", "kv_cache_bytes", "max_model_len"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} in {choices}, got {getattr(self, name)!r}")
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError(
                f"expected num_blocks or kv_cache_bytes, got both: {self.num_blocks} and {self.kv_cache_bytes}"
            )
        for name in ("prefix_caching", "record_trace"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"expected {name} to be True or False, got {getattr(self, name)!r}")
        if self.speculative is not None and not isinstance(self.speculative, Speculation):
            raise ValueError(
                f"expected speculative as NGram(...), DraftModel(...), DraftHead(...) or None, "
                f"got {self.speculative!r:.80}"
            )
        if self.kv_scales is not None:
            if not isinstance(self.kv_scales, KVScales):
                raise ValueError(f"expected kv_scales as KVScales or None, got {self.kv_scales!r:.80}")
            if not self.kv_cache_dtype.startswith("fp8"):
                raise ValueError(f"expected kv_scales with an FP8 kv_cache_dtype only, got {self.kv_cache_dtype!r}")


def check_positive(name: str, value: object) -> None:
    """Raise ValueError unless `value` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected {name} to be an integer >= 1, got {value!r}")
