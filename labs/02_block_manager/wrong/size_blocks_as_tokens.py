# task: lab02.block-size
# says: are larger than the pool
def cut(pool):
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        needed = [-(-length // block_size) for length in pool["lengths"]]
        num_blocks = pool["pool_bytes"] // (block_size * pool["kv_bytes_per_token"])
        table_bytes = len(needed) * max(needed) * pool["entry_bytes"]
        if table_bytes <= pool["table_bytes"] and sum(needed) <= num_blocks:
            return {"block_size": block_size, "num_blocks": pool["pool_bytes"] // pool["kv_bytes_per_token"]}
    return {"block_size": 1, "num_blocks": 1}
