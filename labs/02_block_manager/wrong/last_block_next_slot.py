# task: lab02.last-block
# says: Your slot is the one after the last token
def last_block(block_table, token_ids, block_size):
    place = (len(token_ids) - 1) % block_size
    return block_table[-1] * block_size + place + 1, token_ids[-place - 1 :]
