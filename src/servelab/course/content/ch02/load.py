"""The pool, the load, the models and the prompts that the questions of chapter 02 share."""

from servelab.costs import MODEL_SPECS, blocks_needed, kv_cache_bytes_per_token, requests_that_fit, workload

POOL_BYTES, MAX_MODEL_LEN, BLOCK_SIZE, LARGE_BLOCK = 512 * 2**20, 2048, 16, 256
REQUEST_TOKENS = 300
SYSTEM_TOKENS, QUESTION_TOKENS = 1000, 10  # of the prompts that begin alike
MEAN_TOKENS = sum(request.num_tokens for request in workload()) / len(workload())
HALF_BLOCK = sum(range(LARGE_BLOCK)) / LARGE_BLOCK  # a last block of 256 slots has 0 to 255 empty ones
HALF_SMALL_BLOCK = sum(range(BLOCK_SIZE)) / BLOCK_SIZE
SMOLLM2_BYTES = kv_cache_bytes_per_token(MODEL_SPECS["SmolLM2-135M"])
RESERVED_FIT = requests_that_fit(POOL_BYTES, SMOLLM2_BYTES, REQUEST_TOKENS, reserved_tokens=MAX_MODEL_LEN)


def empty_share(empty: float) -> float:
    """The share of the slots owned that hold no token, with `empty` of them beside a request of mean length."""
    return empty / (MEAN_TOKENS + empty)


def tokens_taken_over(prompt: int, common: int, block_size: int) -> int:
    """How many tokens of a prompt the prefix cache has, when a request before had `common` of its first ones."""
    return min(common // block_size, (prompt - 1) // block_size) * block_size


def blocks_of_answers(prompt: int, output: int, answers: int, block_size: int) -> int:
    """Blocks that several answers to one prompt own, when they share its full blocks."""
    shared = prompt // block_size
    return shared + answers * (blocks_needed(prompt + output, block_size) - shared)
