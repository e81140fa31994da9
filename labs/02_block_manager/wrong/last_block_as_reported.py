# task: lab02.last-block
# says: The fault is still in
def last_block(block_table, token_ids, block_size):
    count = len(token_ids) % block_size
    return block_table[-1] * block_size + count - 1, token_ids[-count:]
