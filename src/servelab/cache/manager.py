"""`KVCacheManager`: the block table of every request (PagedAttention, Kwon et al. 2023, section 4.2).

A block table maps logical to physical: token `position` of a request lies in the request's logical block
``position // block_size``, and entry number that of its table says which physical block this is.
"""

from collections import Counter

from servelab.cache.pool import BlockPool, OutOfBlocks, check_count, check_index
from servelab.costs import blocks_needed


class KVCacheManager:
    """Block tables over one `BlockPool`. A *slot* is the place of one token: ``block * block_size + offset``."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        check_count("block_size", block_size)
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._tables: dict[str, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Free memory in this manager's unit: blocks."""
        return self.pool.num_free

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def largest_free(self) -> int:
        """The most one request could still get, in blocks: any free block will do, wherever it lies."""
        return self.pool.num_free

    @property
    def num_slots(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.pool.num_blocks * self.block_size

    @property
    def request_ids(self) -> list[str]:
        """The requests that hold blocks."""
        return list(self._tables)

    def num_missing(self, request_id: str, num_tokens: int) -> int:
        """Blocks that the request still lacks for `num_tokens` tokens in all."""
        return max(0, blocks_needed(num_tokens, self.block_size) - len(self._tables.get(request_id, [])))

    def can_allocate(self, request_id: str, num_tokens: int) -> bool:
        """Whether `allocate` with the same arguments would succeed now."""
        return self.num_missing(request_id, num_tokens) <= self.pool.num_free

    def allocate(self, request_id: str, num_tokens: int) -> list[int]:
        """Grow the request's block table until it covers `num_tokens` tokens in all; return the new blocks.

        A new request starts with an empty table. Most calls while decoding return ``[]``: the last block has room.
        All or nothing: raises OutOfBlocks, and takes no block, when too few are free.
        """
        check_count("num_tokens", num_tokens)
        num_missing = self.num_missing(request_id, num_tokens)
        if num_missing > self.pool.num_free:
            raise OutOfBlocks(needed=num_missing, free=self.pool.num_free)
        new_blocks = [self.pool.allocate() for _ in range(num_missing)]
        self._tables.setdefault(request_id, []).extend(new_blocks)
        return new_blocks

    def free(self, request_id: str) -> list[int]:
        """Give all blocks of the request back, the last one first; return them in that order.

        A request that holds nothing (it waits, or was freed before) gives back ``[]``.
        """
        # The end of a request is worth least to others, so it should be the first to be overwritten.
        blocks = self._tables.pop(request_id, [])[::-1]
        for block in blocks:
            self.pool.free(block)
        return blocks

    def block_table(self, request_id: str) -> list[int]:
        """A copy of the request's table: physical blocks in logical order. Raises ValueError when it holds none."""
        return list(self._table(request_id))

    def slot(self, request_id: str, position: int) -> int:
        """The slot of token `position`. Raises ValueError when the table does not reach that far."""
        table = self._table(request_id)
        check_index("a position", position, len(table) * self.block_size, f" of request {request_id!r}")
        index, offset = divmod(position, self.block_size)
        return table[index] * self.block_size + offset

    def slots(self, request_id: str, start: int, stop: int) -> list[int]:
        """The slots of the tokens ``start .. stop - 1``."""
        return [self.slot(request_id, position) for position in range(start, stop)]

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every block has as many owners as its reference count says.

        Together with the pool's own check: free + referenced = total, and no block has an owner it does not know.
        """
        self.pool.check_integrity()
        owners = Counter(block for table in self._tables.values() for block in table)
        for block in range(self.pool.num_blocks):
            if owners[block] != self.pool.reference_count(block):
                raise RuntimeError(
                    f"block {block} is in {owners[block]} tables, "
                    f"its reference count is {self.pool.reference_count(block)}"
                )
        for request_id, table in self._tables.items():
            if not table or len(set(table)) != len(table):
                raise RuntimeError(f"request {request_id!r} has an empty table or a block twice: {table}")

    def _table(self, request_id: str) -> list[int]:
        if request_id not in self._tables:
            raise ValueError(f"expected a request that holds blocks, got {request_id!r}")
        return self._tables[request_id]
