"""One operator a file: what it computes in plain PyTorch, its Triton kernel, and its launcher.

A launcher runs the kernel on a GPU, or in Triton's interpreter where TRITON_INTERPRET=1 was set before Python began;
elsewhere it returns what the reference computes. torch, triton and the standard library are all that is imported, so
that the folder runs on a bare GPU machine; without triton every file can still be imported and read.
"""

from servelab.kernels.copy_blocks import copy_blocks, copy_blocks_reference
from servelab.kernels.flash_attention import flash_attention, flash_attention_reference
from servelab.kernels.merge_attention import merge_attention, merge_attention_reference
from servelab.kernels.naive_attention import naive_attention, naive_attention_reference
from servelab.kernels.online_softmax import online_softmax, online_softmax_reference
from servelab.kernels.paged_attention import paged_attention, paged_attention_reference
from servelab.kernels.quantize_kv import (
    FP8_MAX,
    GRANULARITIES,
    QUANTIZED_DTYPES,
    check_scales,
    dequantize_kv,
    dequantize_kv_reference,
    quantize_kv,
    quantize_kv_reference,
)
from servelab.kernels.rejection_sample import rejection_sample, rejection_sample_reference
from servelab.kernels.rms_norm import rms_norm, rms_norm_reference
from servelab.kernels.rotary_embedding import rotary_embedding, rotary_embedding_reference
from servelab.kernels.silu_and_mul import silu_and_mul, silu_and_mul_reference
from servelab.kernels.tiled_attention import tiled_attention, tiled_attention_reference
from servelab.kernels.write_kv_cache import write_kv_cache, write_kv_cache_reference

__all__ = [
    "FP8_MAX",
    "GRANULARITIES",
    "QUANTIZED_DTYPES",
    "check_scales",
    "copy_blocks",
    "copy_blocks_reference",
    "dequantize_kv",
    "dequantize_kv_reference",
    "flash_attention",
    "flash_attention_reference",
    "merge_attention",
    "merge_attention_reference",
    "naive_attention",
    "naive_attention_reference",
    "online_softmax",
    "online_softmax_reference",
    "paged_attention",
    "paged_attention_reference",
    "quantize_kv",
    "quantize_kv_reference",
    "rejection_sample",
    "rejection_sample_reference",
    "rms_norm",
    "rms_norm_reference",
    "rotary_embedding",
    "rotary_embedding_reference",
    "silu_and_mul",
    "silu_and_mul_reference",
    "tiled_attention",
    "tiled_attention_reference",
    "write_kv_cache",
    "write_kv_cache_reference",
]
