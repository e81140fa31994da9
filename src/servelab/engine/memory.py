"""How many blocks the KV pool gets, and how long a request may be in it."""

import psutil
import torch

from servelab.cache import kv_bytes_per_token
from servelab.engine.config import EngineConfig
from servelab.model import Model

CPU_SHARE, CPU_CAP_BYTES = 0.25, 512 * 2**20
GPU_SHARE = 0.8


def pool_blocks(model: Model, config: EngineConfig, draft_block_bytes: int = 0) -> int:
    """Blocks of the pool: as configured, or what a share of the free memory holds.

    draft_block_bytes: what a draft keeps for each block beside the target's keys and values; it counts as theirs.
    The share is 80 % of a GPU's free memory; on a CPU, which runs other programs too, 25 % and at most 512 MiB.
    Never more than `max_num_seqs` requests of the greatest length can fill. Raises ValueError when the bytes do
    not hold one block, or the pool is larger than the free memory.
    """
    block_bytes = config.block_size * token_bytes(model, config) + draft_block_bytes
    num_blocks = _wanted_blocks(model, config, block_bytes)
    # An operating system may promise more than it has, and then kills the process that uses it.
    available = available_bytes(model.device)
    if num_blocks * block_bytes > available:
        raise ValueError(
            f"expected a KV pool of at most {available} bytes (the free memory), got {num_blocks} blocks of "
            f"{config.block_size} tokens, {block_bytes} bytes each = {num_blocks * block_bytes} bytes"
        )
    return num_blocks


def token_bytes(model: Model, config: EngineConfig) -> int:
    """Bytes that the KV cache keeps for one token in the configured format: K, V and their scales, all layers."""
    shape = model.config
    return kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, model.dtype, config.kv_cache_dtype)


def _wanted_blocks(model: Model, config: EngineConfig, block_bytes: int) -> int:
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_cache_bytes is not None:
        if config.kv_cache_bytes < block_bytes:
            raise ValueError(
                f"expected kv_cache_bytes >= {block_bytes} (one block of {config.block_size} tokens), "
                f"got {config.kv_cache_bytes}"
            )
        return config.kv_cache_bytes // block_bytes
    blocks_per_request = -(-(config.max_model_len or model.config.max_context) // config.block_size)
    return max(1, min(free_bytes(model.device) // block_bytes, config.max_num_seqs * blocks_per_request))


def free_bytes(device: torch.device) -> int:
    """Bytes that a pool may take on `device` when nobody said how many."""
    if device.type == "cuda":
        return int(available_bytes(device) * GPU_SHARE)
    return min(int(available_bytes(device) * CPU_SHARE), CPU_CAP_BYTES)


def available_bytes(device: torch.device) -> int:
    """Bytes of memory that are free on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def length_limit(model: Model, config: EngineConfig, num_slots: int) -> int:
    """Prompt and output tokens of one request at most. Raises ValueError when the configured limit cannot hold."""
    if config.max_model_len is None:
        return min(model.config.max_context, num_slots)
    if config.max_model_len > model.config.max_context:
        raise ValueError(
            f"expected max_model_len <= {model.config.max_context} (the context of {model.name}), "
            f"got {config.max_model_len}"
        )
    return config.max_model_len
