# task: lab02.evidence
# says: At this length the code is right
def evidence(block_size):
    return 2 * block_size + 1, 1, 1
