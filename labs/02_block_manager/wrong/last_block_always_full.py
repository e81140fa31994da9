# task: lab02.last-block
# says: You take every last block for a full one
def last_block(block_table, token_ids, block_size):
    return block_table[-1] * block_size + block_size - 1, token_ids[-block_size:]
