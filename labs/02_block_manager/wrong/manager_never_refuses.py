# task: lab02.block-manager
# says: and you do not return False
class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.tables = {}
        self.num_tokens = {}

    @property
    def num_free(self):
        return len(self.free_blocks)

    def block_table(self, request_id):
        return list(self.tables[request_id])

    def allocate(self, request_id, num_tokens):
        needed = -(-num_tokens // self.block_size)
        if needed > len(self.free_blocks):
            self.tables[request_id] = []
            self.num_tokens[request_id] = 0
            return True
        self.tables[request_id] = [self.free_blocks.pop() for _ in range(needed)]
        self.num_tokens[request_id] = num_tokens
        return True

    def append(self, request_id):
        if self.num_tokens[request_id] == len(self.tables[request_id]) * self.block_size:
            if not self.free_blocks:
                return False
            self.tables[request_id].append(self.free_blocks.pop())
        self.num_tokens[request_id] += 1
        return True

    def free(self, request_id):
        self.free_blocks += self.tables.pop(request_id, [])
        self.num_tokens.pop(request_id, None)
