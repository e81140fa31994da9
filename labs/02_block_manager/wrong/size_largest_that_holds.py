# task: lab02.block-size
# says: leaves fewer slots of the last blocks empty
def cut(pool):
    for block_size in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        needed = [-(-length // block_size) for length in pool["lengths"]]
        num_blocks = pool["pool_bytes"] // (block_size * pool["kv_bytes_per_token"])
        table_bytes = len(needed) * max(needed) * pool["entry_bytes"]
        if table_bytes <= pool["table_bytes"] and sum(needed) <= num_blocks:
            return {"block_size": block_size, "num_blocks": num_blocks}
    return {"block_size": 1, "num_blocks": 1}
