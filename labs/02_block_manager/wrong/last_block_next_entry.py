# task: lab02.last-block
# says: It raises    IndexError
def last_block(block_table, token_ids, block_size):
    index, count = divmod(len(token_ids), block_size)
    return block_table[index] * block_size + count - 1, token_ids[index * block_size :]
