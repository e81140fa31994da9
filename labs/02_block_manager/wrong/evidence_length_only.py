# task: lab02.evidence
# says: Return three whole numbers
def evidence(block_size):
    return 2 * block_size
