# task: lab02.evidence
# says: the code says something else
def evidence(block_size):
    return block_size, -1, block_size
