# task: lab01.plan
# says: Return a dict with num_blocks
def plan(card):
    tokens = card["prompt_tokens"] + card["output_tokens"]
    blocks_per_request = -(-tokens // card["block_size"])
    pool_bytes = card["memory_bytes"] - card["weight_bytes"] - card["reserve_bytes"]
    num_blocks = pool_bytes // (card["block_size"] * card["kv_bytes_per_token"])
    by_memory = num_blocks // blocks_per_request
    by_step = (card["step_bytes"] - card["weight_bytes"]) // (tokens * card["kv_bytes_per_token"])
    return num_blocks, tokens, min(by_memory, by_step)
