# task: lab02.last-block
# says: What is block_table for
def last_block(block_table, token_ids, block_size):
    place = (len(token_ids) - 1) % block_size
    return len(token_ids) - 1, token_ids[-place - 1 :]
