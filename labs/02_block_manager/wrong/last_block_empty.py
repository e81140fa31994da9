# task: lab02.last-block
# says: a full block holds no token
def last_block(block_table, token_ids, block_size):
    full = len(token_ids) // block_size
    slot = block_table[-1] * block_size + (len(token_ids) - 1) % block_size
    return slot, token_ids[full * block_size :]
