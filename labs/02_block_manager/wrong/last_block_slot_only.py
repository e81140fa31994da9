# task: lab02.last-block
# says: what is [-0:] in Python
def last_block(block_table, token_ids, block_size):
    count = len(token_ids) % block_size
    slot = block_table[-1] * block_size + (len(token_ids) - 1) % block_size
    return slot, token_ids[-count:]
