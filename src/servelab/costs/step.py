"""One decode step and one prefill: bytes moved, FLOPs done, and the least time a machine needs for them.

Counted: products with the weights (2 FLOPs a parameter and token) and attention (2 FLOPs for each product of a query
with a key and for each weighted value). Left out: norms, rotary embedding, softmax and activations, under 1 % of the
FLOPs. Bytes: each weight once a step, K and V of every earlier token once, K and V of the new tokens once.
"""

import math
from typing import Any

from servelab.costs.gpu import GPUSpec
from servelab.costs.memory import is_number, kv_cache_bytes_per_token
from servelab.costs.model import ModelSpec
from servelab.costs.roofline import Roofline


def weight_bytes_read(
    spec: ModelSpec, num_tokens: int = 1, bytes_per_parameter: float = 2, bytes_per_embedding: float | None = None
) -> float:
    """Bytes of weights that one step over `num_tokens` tokens reads.

    A dense model: all of them, whatever the number of tokens, but for an untied embedding table, of which it reads
    one row a token. A mixture of experts: those of the experts that at least one token takes, in the mean, when each
    token picks its experts evenly. bytes_per_embedding: see `weight_bytes`.
    """
    _check_tokens(num_tokens)
    if bytes_per_embedding is None:
        bytes_per_embedding = bytes_per_parameter
    routed = spec.num_routed_parameters
    always = spec.num_parameters - routed - spec.num_embedding_parameters
    share = 1 - (1 - spec.num_experts_per_token / spec.num_experts) ** num_tokens if spec.num_experts else 0
    rows = num_tokens * spec.hidden_size if spec.num_lookup_parameters else 0
    output_projection = spec.vocab_size * spec.hidden_size
    return (always + share * routed) * bytes_per_parameter + (output_projection + rows) * bytes_per_embedding


def decode_step_bytes(
    spec: ModelSpec,
    batch_size: int,
    context_tokens: int,
    bytes_per_parameter: float = 2,
    bytes_per_element: float = 2,
) -> float:
    """Bytes moved by one decode step of `batch_size` requests that hold `context_tokens` tokens each.

    `context_tokens` counts the token of this step: its K and V are written and read.
    """
    _check_tokens(context_tokens)
    kv_bytes = batch_size * context_tokens * kv_cache_bytes_per_token(spec, bytes_per_element)
    return weight_bytes_read(spec, batch_size, bytes_per_parameter) + kv_bytes


def decode_step_flops(spec: ModelSpec, batch_size: int, context_tokens: int) -> float:
    """FLOPs of one decode step of `batch_size` requests that hold `context_tokens` tokens each."""
    _check_tokens(batch_size)
    _check_tokens(context_tokens)
    products = 2 * (spec.num_active_parameters - spec.num_lookup_parameters)
    return batch_size * (products + attention_flops(spec) * context_tokens)


def decode_step_seconds(
    spec: ModelSpec,
    gpu: GPUSpec | Roofline,
    batch_size: int = 1,
    context_tokens: int = 1,
    bytes_per_parameter: float = 2,
    bytes_per_element: float = 2,
) -> float:
    """The least time of one decode step: the slower of its memory traffic and its arithmetic, both at their peak.

    gpu: a `GPUSpec` (the peak of its default dtype) or a `Roofline`, for example of
    this machine's measured ceilings.
    """
    num_bytes = decode_step_bytes(spec, batch_size, context_tokens, bytes_per_parameter, bytes_per_element)
    return _roofline(gpu).seconds(decode_step_flops(spec, batch_size, context_tokens), num_bytes)


def prefill_bytes(
    spec: ModelSpec, prompt_tokens: int, bytes_per_parameter: float = 2, bytes_per_element: float = 2
) -> float:
    """Bytes moved by the prefill of one prompt: the weights once, and the K and V it writes."""
    kv_bytes = prompt_tokens * kv_cache_bytes_per_token(spec, bytes_per_element)
    return weight_bytes_read(spec, prompt_tokens, bytes_per_parameter) + kv_bytes


def prefill_flops(spec: ModelSpec, prompt_tokens: int) -> float:
    """FLOPs of the prefill of one prompt: causal attention (token i attends to i tokens), logits of the last only."""
    _check_tokens(prompt_tokens)
    output_projection = spec.vocab_size * spec.hidden_size
    layers = spec.num_active_parameters - spec.num_lookup_parameters - output_projection
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    return 2 * layers * prompt_tokens + 2 * output_projection + attention_flops(spec) * pairs


def prefill_seconds(
    spec: ModelSpec,
    gpu: GPUSpec | Roofline,
    prompt_tokens: int,
    bytes_per_parameter: float = 2,
    bytes_per_element: float = 2,
) -> float:
    """The least time of the prefill of one prompt (see `decode_step_seconds`)."""
    num_bytes = prefill_bytes(spec, prompt_tokens, bytes_per_parameter, bytes_per_element)
    return _roofline(gpu).seconds(prefill_flops(spec, prompt_tokens), num_bytes)


def arithmetic_intensity(
    spec: ModelSpec,
    batch_size: int = 1,
    context_tokens: int = 1,
    bytes_per_parameter: float = 2,
    bytes_per_element: float = 2,
) -> float:
    """FLOPs per byte of one decode step."""
    num_bytes = decode_step_bytes(spec, batch_size, context_tokens, bytes_per_parameter, bytes_per_element)
    return decode_step_flops(spec, batch_size, context_tokens) / num_bytes


def attention_flops(spec: ModelSpec) -> int:
    """FLOPs of one query token against one stored token, over all layers and query heads."""
    if spec.kv_lora_rank:
        key_dim, value_dim = spec.kv_lora_rank + spec.rope_head_dim, spec.kv_lora_rank
    else:
        key_dim = value_dim = spec.head_dim
    return spec.num_layers * spec.num_query_heads * 2 * (key_dim + value_dim)


def _roofline(gpu: GPUSpec | Roofline) -> Roofline:
    return gpu.roofline() if isinstance(gpu, GPUSpec) else gpu


def _check_tokens(value: Any) -> None:
    if not is_number(value) or not 1 <= value < math.inf:
        raise ValueError(f"expected at least 1 token or request, got {value!r}")
