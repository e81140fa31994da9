"""What weights and the KV cache weigh, how many requests a pool holds, and how much of it is wasted."""

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from servelab.costs.model import ModelSpec


def kv_cache_bytes_per_token(spec: ModelSpec, bytes_per_element: float = 2) -> int:
    """Bytes that one token adds to the KV cache, over all layers (2 bytes an element: 16 bit).

    Layers x 2 (K and V) x KV heads x head dim x bytes; with latent attention layers x (latent + rotary key) x bytes.
    """
    _more_than_nothing("bytes_per_element", bytes_per_element)
    return _whole(spec.kv_elements_per_token * bytes_per_element)


def weight_bytes(spec: ModelSpec, bytes_per_parameter: float = 2, bytes_per_embedding: float | None = None) -> int:
    """Bytes of all weights in memory (2 bytes a parameter: 16 bit).

    bytes_per_embedding: of embedding table and output projection, which 8-bit and 4-bit checkpoints mostly keep in
    16 bit; None is as all others.
    """
    if bytes_per_embedding is None:
        bytes_per_embedding = bytes_per_parameter
    _more_than_nothing("bytes_per_parameter", bytes_per_parameter)
    _more_than_nothing("bytes_per_embedding", bytes_per_embedding)
    embeddings = spec.num_embedding_parameters
    return _whole((spec.num_parameters - embeddings) * bytes_per_parameter + embeddings * bytes_per_embedding)


def kv_weight_crossover_tokens(spec: ModelSpec, bytes_per_element: float = 2, bytes_per_parameter: float = 2) -> int:
    """Tokens, over all requests, up to which the KV cache is no heavier than the weights. One more and it is."""
    return weight_bytes(spec, bytes_per_parameter) // kv_cache_bytes_per_token(spec, bytes_per_element)


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks of `block_size` slots that hold `num_tokens` tokens: the quotient, rounded up."""
    _positive("block_size", block_size)
    _not_negative("num_tokens", num_tokens)
    return -(-num_tokens // block_size)


def requests_that_fit(
    pool_bytes: int,
    bytes_per_token: int,
    request_tokens: int,
    *,
    reserved_tokens: int | None = None,
    block_size: int | None = None,
) -> int:
    """How many requests of `request_tokens` tokens (prompt and output) a KV pool of `pool_bytes` holds at once.

    Give `reserved_tokens` for a contiguous pool that reserves so many slots per request, or `block_size` for a paged
    pool; with neither, every request takes exactly its tokens. Raises ValueError when both are given, or when a
    request is longer than its reservation.
    """
    _not_negative("pool_bytes", pool_bytes)
    _positive("bytes_per_token", bytes_per_token)
    _positive("request_tokens", request_tokens)
    if reserved_tokens is not None and block_size is not None:
        raise ValueError(f"expected reserved_tokens or block_size, got both: {reserved_tokens} and {block_size}")
    num_slots = pool_bytes // bytes_per_token
    if block_size is not None:
        _positive("block_size", block_size)
        return (num_slots // block_size) // blocks_needed(request_tokens, block_size)
    slots_per_request = request_tokens if reserved_tokens is None else reserved_tokens
    if slots_per_request < request_tokens:
        raise ValueError(f"expected a reservation of at least {request_tokens} tokens, got {slots_per_request}")
    return num_slots // slots_per_request


def paged_waste(num_tokens: int | Iterable[int], block_size: int) -> int:
    """Slots of the last block that stay empty, for one request or summed over several (internal waste)."""
    lengths = [num_tokens] if isinstance(num_tokens, int) else list(num_tokens)
    return sum(blocks_needed(length, block_size) * block_size - length for length in lengths)


def contiguous_waste(num_tokens: int | Iterable[int], reserved_tokens: int) -> int:
    """Slots reserved and never used, for one request or summed over several."""
    lengths = [num_tokens] if isinstance(num_tokens, int) else list(num_tokens)
    _positive("reserved_tokens", reserved_tokens)
    for length in lengths:
        _not_negative("num_tokens", length)
    if any(length > reserved_tokens for length in lengths):
        raise ValueError(f"expected requests of at most {reserved_tokens} tokens, got one of {max(lengths)}")
    return sum(reserved_tokens - length for length in lengths)


def holes(num_slots: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Free runs ``(start, length)`` of a contiguous pool, from its taken runs ``(start, length)`` in any order.

    Raises ValueError where two taken runs overlap or one leaves the pool.
    """
    free, position = [], 0
    for start, length in sorted(taken):
        if start < position or length < 1 or start + length > num_slots:
            raise ValueError(f"expected runs that do not overlap inside 0..{num_slots - 1}, got {(start, length)}")
        if start > position:
            free.append((position, start - position))
        position = start + length
    if position < num_slots:
        free.append((position, num_slots - position))
    return free


def _positive(name: str, value: Any) -> None:
    _at_least(name, value, 1)


def _not_negative(name: str, value: Any) -> None:
    _at_least(name, value, 0)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, numpy's too, and no tensor, text or None."""
    return isinstance(value, Real)


def _at_least(name: str, value: Any, low: int) -> None:
    # `not >=` and not `<`: NaN compares with nothing.
    if not is_number(value) or not low <= value < math.inf:
        raise ValueError(f"expected {name} of at least {low}, got {value!r}")


def _more_than_nothing(name: str, value: Any) -> None:
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"expected {name} above 0, got {value!r}")


def _whole(value: float) -> int:
    """Bytes, rounded up: half a byte (4 bit) still takes one."""
    return -int(-value // 1)
