# task: lab02.block-size
# says: Return a dict with block_size
def cut(pool):
    return 16
