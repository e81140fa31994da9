# task: lab01.pool-blocks
# says: does not fit into the memory
def pool_blocks(config, memory_bytes, block_size):
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    bytes_per_token = config["num_hidden_layers"] * 2 * kv_heads * head_dim * 2
    return -(-memory_bytes // (block_size * bytes_per_token))
