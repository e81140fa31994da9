# task: lab01.pool-blocks
# says: Not every model has heads of 128
def pool_blocks(config, memory_bytes, block_size):
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or 128
    bytes_per_token = config["num_hidden_layers"] * 2 * kv_heads * head_dim * 2
    return memory_bytes // (block_size * bytes_per_token)
