# task: lab01.plan
# says: more requests could run at once
def plan(card):
    tokens = card["prompt_tokens"] + card["output_tokens"]
    pool_bytes = card["memory_bytes"] - card["weight_bytes"] - card["reserve_bytes"]
    num_blocks = pool_bytes // (card["block_size"] * card["kv_bytes_per_token"])
    return {"num_blocks": num_blocks, "max_model_len": tokens, "max_num_seqs": 1}
