# task: lab01.plan
# says: someone is preempted
def plan(card):
    tokens = card["prompt_tokens"] + card["output_tokens"]
    blocks_per_request = -(-tokens // card["block_size"])
    pool_bytes = card["memory_bytes"] - card["weight_bytes"] - card["reserve_bytes"]
    num_blocks = pool_bytes // (card["block_size"] * card["kv_bytes_per_token"])
    by_memory = num_blocks // blocks_per_request
    return {"num_blocks": num_blocks, "max_model_len": tokens, "max_num_seqs": by_memory + 1}
