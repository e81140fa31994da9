"""`memory_budget`: what is left of a GPU's memory for the KV cache, line by line.

memory                      what the driver reports
- not usable                CUDA's own, compiled graphs, what the allocator cannot join
- weights                   all layers
- embeddings                the embedding table and the output projection
- activations               of the largest step
= KV cache
"""

import math
from dataclasses import dataclass

from servelab.costs.memory import is_number, kv_cache_bytes_per_token, weight_bytes
from servelab.costs.model import ModelSpec

LOGIT_BYTES = 4  # logits are float32, whatever the model computes in


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes of one GPU by what they are for; `kv_bytes` is what the others leave. bytes_per_token: of the KV cache."""

    memory_bytes: int
    unusable_bytes: int
    layer_bytes: int
    embedding_bytes: int
    activation_bytes: int
    bytes_per_token: int

    @property
    def weight_bytes(self) -> int:
        return self.layer_bytes + self.embedding_bytes

    @property
    def kv_bytes(self) -> int:
        return self.memory_bytes - self.unusable_bytes - self.weight_bytes - self.activation_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens, over all requests, that the KV cache holds."""
        return self.kv_bytes // self.bytes_per_token

    def num_blocks(self, block_size: int = 16) -> int:
        """Whole blocks of `block_size` tokens."""
        return self.kv_tokens // block_size


def memory_budget(
    spec: ModelSpec,
    memory_bytes: int,
    *,
    usable_share: float = 0.9,
    bytes_per_parameter: float = 2,
    bytes_per_embedding: float = 2,
    bytes_per_element: float = 2,
    bytes_per_activation: float = 2,
    step_tokens: int = 2_048,
    step_requests: int = 256,
) -> MemoryBudget:
    """Split the memory of one GPU that holds one whole model.

    memory_bytes: of the GPU, as its driver reports them. usable_share: of it, for weights, activations and KV
    together, 0 to 1 (vLLM's `gpu_memory_utilization`). bytes_per_parameter: of a weight in the layers (2: 16 bit,
    1: 8 bit; scales are left out); bytes_per_embedding: of embedding table and output projection, which mostly stay
    in 16 bit; bytes_per_element: of a number of K or V; bytes_per_activation: of a number between two layers.
    step_tokens, step_requests: tokens and requests of the largest step, which must find room beside the cache.
    Raises ValueError for values that cannot be, and when nothing is left for a single token.
    """
    if not is_number(usable_share) or not 0 < usable_share <= 1:
        raise ValueError(f"expected usable_share above 0, at most 1, got {usable_share!r}")
    if not is_number(memory_bytes) or not 1 <= memory_bytes < math.inf:
        raise ValueError(f"expected memory_bytes of at least 1, got {memory_bytes!r}")
    embedding_bytes = math.ceil(spec.num_embedding_parameters * bytes_per_embedding)
    budget = MemoryBudget(
        memory_bytes=int(memory_bytes),
        unusable_bytes=int(memory_bytes) - int(memory_bytes * usable_share),
        layer_bytes=weight_bytes(spec, bytes_per_parameter, bytes_per_embedding) - embedding_bytes,
        embedding_bytes=embedding_bytes,
        activation_bytes=activation_bytes(spec, step_tokens, step_requests, bytes_per_activation),
        bytes_per_token=kv_cache_bytes_per_token(spec, bytes_per_element),
    )
    if budget.kv_tokens < 1:
        raise ValueError(
            f"expected a GPU with room for the KV cache of a token beside {spec.name}, got {memory_bytes} bytes, of "
            f"which {budget.kv_bytes} are left"
        )
    return budget


def activation_bytes(spec: ModelSpec, step_tokens: int, step_requests: int = 0, bytes_per_activation: float = 2) -> int:
    """Bytes of what a step of `step_tokens` tokens holds at its widest place, and of the logits of `step_requests`.

    That place is in the feed-forward layer: of each token the residual and its normed copy (hidden size each), gate
    and up projection, and their product (intermediate size each). Raises ValueError for a spec that does not say how
    wide its feed-forward layer is.
    """
    if spec.intermediate_size < 1:
        raise ValueError(f"expected a spec with an intermediate_size, got {spec.name!r} with {spec.intermediate_size}")
    if step_tokens < 1 or step_requests < 0 or not bytes_per_activation > 0:
        raise ValueError(
            f"expected step_tokens of at least 1, step_requests of at least 0 and bytes_per_activation above 0, "
            f"got {step_tokens}, {step_requests} and {bytes_per_activation}"
        )
    width = 2 * spec.hidden_size + 3 * spec.intermediate_size
    return math.ceil(step_tokens * width * bytes_per_activation) + step_requests * spec.vocab_size * LOGIT_BYTES
