# task: lab02.block-size
# says: powers of two
def cut(pool):
    for block_size in range(3, 257, 3):
        needed = [-(-length // block_size) for length in pool["lengths"]]
        num_blocks = pool["pool_bytes"] // (block_size * pool["kv_bytes_per_token"])
        table_bytes = len(needed) * max(needed) * pool["entry_bytes"]
        if table_bytes <= pool["table_bytes"] and sum(needed) <= num_blocks:
            return {"block_size": block_size, "num_blocks": num_blocks}
    return {"block_size": 3, "num_blocks": 1}
