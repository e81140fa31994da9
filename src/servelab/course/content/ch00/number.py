"""The numbers that the readiness check and the primers of chapter 00 share."""

from servelab.costs import MODEL_SPECS

SMOLLM2 = MODEL_SPECS["SmolLM2-135M"]
KV_NUMBERS_PER_LAYER = 2 * SMOLLM2.num_kv_heads * SMOLLM2.head_dim
QUERY_NUMBERS_PER_LAYER = 2 * SMOLLM2.num_query_heads * SMOLLM2.head_dim
GROUP = SMOLLM2.num_query_heads // SMOLLM2.num_kv_heads

# The machine of the readiness question: round numbers, so that the two times divide without a calculator.
READS, COMPUTES = 50e9, 200e9
STEP_BYTES, STEP_FLOPS = 1e9, 1e9
READ_MS, COMPUTE_MS = 1e3 * STEP_BYTES / READS, 1e3 * STEP_FLOPS / COMPUTES
