# task: lab02.evidence
# says: A request without tokens
def evidence(block_size):
    return 0, 0, block_size
