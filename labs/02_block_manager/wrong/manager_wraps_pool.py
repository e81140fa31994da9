# task: lab02.block-manager
# says: This uses servelab.cache.pool, which is servelab's own
from servelab.cache import BlockPool


class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.pool = BlockPool(num_blocks)
