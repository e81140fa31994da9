# task: lab02.evidence
# says: Count the tokens of the last block again
def evidence(block_size):
    return block_size, 0, block_size - 1
