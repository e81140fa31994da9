# task: lab02.block-size
# says: each one rounds up by itself
def cut(pool):
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        needed = [-(-length // block_size) for length in pool["lengths"]]
        num_blocks = pool["pool_bytes"] // (block_size * pool["kv_bytes_per_token"])
        table_bytes = len(needed) * max(needed) * pool["entry_bytes"]
        if table_bytes <= pool["table_bytes"] and sum(needed) <= num_blocks:
            return {"block_size": block_size, "num_blocks": sum(pool["lengths"]) // block_size}
    return {"block_size": 1, "num_blocks": 1}
