# task: lab02.block-size
# says: The requests do not all fit
def cut(pool):
    return {"block_size": 256, "num_blocks": pool["pool_bytes"] // (256 * pool["kv_bytes_per_token"])}
