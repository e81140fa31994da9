"""The operators of a language model, and the one place that chooses what computes them."""

from servelab.ops.activation import silu_and_mul
from servelab.ops.arena import Arena, huge_empty
from servelab.ops.attention import Attention, CachedAttention, PackedCausalAttention
from servelab.ops.batch import AttentionBatch, KVView
from servelab.ops.layer import HeadResult, HeadWeights, Layers, LayerWeights, LinearWeights, run_head, run_layers
from servelab.ops.linear import Linear
from servelab.ops.norm import rms_norm
from servelab.ops.rejection import draw, rejection_sample
from servelab.ops.rotary import RopeScaling, rotary_embedding, rotary_frequencies, rotary_tables

__all__ = [
    "Arena",
    "Attention",
    "AttentionBatch",
    "CachedAttention",
    "HeadResult",
    "HeadWeights",
    "KVView",
    "LayerWeights",
    "Layers",
    "Linear",
    "LinearWeights",
    "PackedCausalAttention",
    "RopeScaling",
    "draw",
    "huge_empty",
    "rejection_sample",
    "rms_norm",
    "rotary_embedding",
    "rotary_frequencies",
    "rotary_tables",
    "run_head",
    "run_layers",
    "silu_and_mul",
]
