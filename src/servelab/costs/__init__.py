"""Arithmetic only: bytes per token, FLOPs and rooflines, and tables of models and GPUs with their sources.

Nothing here measures anything and nothing here imports torch: every number is a formula over a specification.
"""

from servelab.costs.budget import MemoryBudget, activation_bytes, memory_budget
from servelab.costs.gpu import GPU_SPECS, GPUSpec
from servelab.costs.memory import (
    blocks_needed,
    contiguous_waste,
    holes,
    kv_cache_bytes_per_token,
    kv_weight_crossover_tokens,
    paged_waste,
    requests_that_fit,
    weight_bytes,
)
from servelab.costs.mixed import StepWork, step_bytes, step_flops
from servelab.costs.model import MODEL_SPECS, ModelSpec
from servelab.costs.roofline import Roofline
from servelab.costs.speculation import (
    acceptance_rate,
    expected_tokens_per_step,
    residual,
    speculation_speedup,
    verification_cost,
)
from servelab.costs.step import (
    arithmetic_intensity,
    decode_step_bytes,
    decode_step_flops,
    decode_step_seconds,
    prefill_bytes,
    prefill_flops,
    prefill_seconds,
    weight_bytes_read,
)
from servelab.costs.workload import RequestLength, workload

__all__ = [
    "GPU_SPECS",
    "MODEL_SPECS",
    "GPUSpec",
    "MemoryBudget",
    "ModelSpec",
    "RequestLength",
    "Roofline",
    "StepWork",
    "acceptance_rate",
    "activation_bytes",
    "arithmetic_intensity",
    "blocks_needed",
    "contiguous_waste",
    "decode_step_bytes",
    "decode_step_flops",
    "decode_step_seconds",
    "expected_tokens_per_step",
    "holes",
    "kv_cache_bytes_per_token",
    "kv_weight_crossover_tokens",
    "memory_budget",
    "paged_waste",
    "prefill_bytes",
    "prefill_flops",
    "prefill_seconds",
    "requests_that_fit",
    "residual",
    "speculation_speedup",
    "step_bytes",
    "step_flops",
    "verification_cost",
    "weight_bytes",
    "weight_bytes_read",
    "workload",
]
