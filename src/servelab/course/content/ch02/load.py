"""The pool, the load and the models that the questions of chapter 02 share."""

from servelab.costs import MODEL_SPECS, kv_cache_bytes_per_token, requests_that_fit, workload

POOL_BYTES, MAX_MODEL_LEN, BLOCK_SIZE, LARGE_BLOCK = 512 * 2**20, 2048, 16, 256
REQUEST_TOKENS = 300
MEAN_TOKENS = sum(request.num_tokens for request in workload()) / len(workload())
HALF_BLOCK = sum(range(LARGE_BLOCK)) / LARGE_BLOCK  # a last block of 256 slots has 0 to 255 empty ones
HALF_SMALL_BLOCK = sum(range(BLOCK_SIZE)) / BLOCK_SIZE
SMOLLM2_BYTES = kv_cache_bytes_per_token(MODEL_SPECS["SmolLM2-135M"])
LLAMA_BYTES = kv_cache_bytes_per_token(MODEL_SPECS["Llama-3-8B"])
RESERVED_FIT = requests_that_fit(POOL_BYTES, SMOLLM2_BYTES, REQUEST_TOKENS, reserved_tokens=MAX_MODEL_LEN)


def empty_share(empty: float) -> float:
    """The share of the slots owned that hold no token, with `empty` of them beside a request of mean length."""
    return empty / (MEAN_TOKENS + empty)
