"""One operator a file: what it computes in plain PyTorch, and its launcher."""

from servelab.kernels.quantize_kv import (
    FP8_MAX,
    QUANTIZED_DTYPES,
    check_scales,
    dequantize_kv,
    dequantize_kv_reference,
    quantize_kv,
    quantize_kv_reference,
)

__all__ = [
    "FP8_MAX",
    "QUANTIZED_DTYPES",
    "check_scales",
    "dequantize_kv",
    "dequantize_kv_reference",
    "quantize_kv",
    "quantize_kv_reference",
]
