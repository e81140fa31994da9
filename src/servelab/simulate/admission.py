"""How large the simulated pool is, and what a request must be to enter it: checked before anything runs."""

from collections.abc import Sequence

from servelab.costs import ModelSpec
from servelab.engine import EngineConfig
from servelab.simulate.deployment import Deployment
from servelab.simulate.load import Arrival


def pool_size(deployment: Deployment, config: EngineConfig) -> tuple[int, int]:
    """Blocks and slots of the pool. Raises ValueError where the configuration does not say how large it is."""
    num_blocks = config.num_blocks
    if num_blocks is None:
        if config.kv_cache_bytes is None:
            raise ValueError(
                "expected num_blocks or kv_cache_bytes, got neither: there is no memory to take a share of"
            )
        num_blocks = config.kv_cache_bytes // (config.block_size * deployment.kv_bytes_per_token)
        if not num_blocks:
            raise ValueError(
                f"expected kv_cache_bytes >= {config.block_size * deployment.kv_bytes_per_token} (one block of "
                f"{config.block_size} tokens), got {config.kv_cache_bytes}"
            )
    return num_blocks, num_blocks * config.block_size


def length_limit(spec: ModelSpec, config: EngineConfig, num_slots: int) -> int:
    """Prompt and output tokens of one request at most, as in an engine. Raises ValueError for more than the context."""
    if config.max_model_len is None:
        return min(spec.max_context, num_slots)
    if config.max_model_len > spec.max_context:
        raise ValueError(
            f"expected max_model_len <= {spec.max_context} (the context of {spec.name}), got {config.max_model_len}"
        )
    return config.max_model_len


def check_arrivals(arrivals: Sequence[Arrival], longest: int) -> None:
    """Raise ValueError for none, for times or lengths that cannot be, and for one that can never fit."""
    if not arrivals:
        raise ValueError("expected at least one request, got none")
    for arrival in arrivals:
        if not 0 <= arrival.time_s < float("inf") or arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
            raise ValueError(f"expected a time of at least 0 and a token of prompt and output each, got {arrival}")
        if arrival.num_tokens > longest:
            raise ValueError(f"expected requests of at most {longest} tokens, prompt and output, got {arrival}")
