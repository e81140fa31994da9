"""One step of a server: rows of prefill and decode together, as a scheduler mixes them.

A row computes `new` tokens behind `before` earlier ones. Its token i attends to before + i tokens. Counted as in
`servelab.costs.step`: a step of equal decode rows costs what `decode_step_bytes` and `decode_step_flops` say, and a
step of one whole prompt what `prefill_bytes` and `prefill_flops` do.
"""

from dataclasses import dataclass

from servelab.costs.memory import kv_cache_bytes_per_token
from servelab.costs.model import ModelSpec
from servelab.costs.step import attention_flops, weight_bytes_read


@dataclass(slots=True)
class StepWork:
    """What the rows of a step add up to; `add` counts one in.

    num_rows: requests. num_tokens: computed, draft tokens included. num_sampled: tokens for which logits are computed.
    num_pairs: products of a query with a key. num_context_tokens: whose K and V are read, the new ones included.
    """

    num_rows: int = 0
    num_tokens: int = 0
    num_sampled: int = 0
    num_pairs: int = 0
    num_context_tokens: int = 0

    def add(self, new: int, before: int, num_sampled: int = 1) -> None:
        """Count a row of `new` tokens behind `before` stored ones, with logits for its last `num_sampled` tokens.

        A chunk that ends before its prompt does has none; a row that verifies k draft tokens has k + 1.
        """
        self.num_rows += 1
        self.num_tokens += new
        self.num_sampled += num_sampled
        self.num_pairs += new * before + new * (new + 1) // 2
        self.num_context_tokens += before + new


def step_bytes(
    spec: ModelSpec,
    work: StepWork,
    bytes_per_parameter: float = 2,
    bytes_per_element: float = 2,
    bytes_per_embedding: float | None = None,
) -> float:
    """Bytes moved: the weights once, K and V of each row's context once (those of its new tokens are written)."""
    kv_bytes = work.num_context_tokens * kv_cache_bytes_per_token(spec, bytes_per_element)
    return weight_bytes_read(spec, work.num_tokens, bytes_per_parameter, bytes_per_embedding) + kv_bytes


def step_flops(spec: ModelSpec, work: StepWork) -> float:
    """FLOPs: 2 for each parameter of the layers and token, 2 for each of the output projection and row of logits,
    and attention for each pair of a query and a key."""
    output_projection = spec.vocab_size * spec.hidden_size
    layers = spec.num_active_parameters - spec.num_lookup_parameters - output_projection
    products = layers * work.num_tokens + output_projection * work.num_sampled
    return 2 * products + attention_flops(spec) * work.num_pairs
