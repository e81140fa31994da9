# task: lab02.block-size
# says: The block tables outgrow table_bytes
def cut(pool):
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        num_blocks = pool["pool_bytes"] // (block_size * pool["kv_bytes_per_token"])
        if True:
            return {"block_size": block_size, "num_blocks": num_blocks}
    return {"block_size": 1, "num_blocks": 1}
