"""`BlockPool`: which physical blocks are free, and how many owners each of the others has.

The pool knows block numbers only. It knows neither requests (`manager.py`) nor tensors (`storage.py`).
"""

from collections import deque


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless `value` is an integer of at least 1. True is none, nor is 2.0."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected {name} to be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"expected {name} >= 1, got {value}")


def check_index(name: str, value: object, count: int, of: str = "") -> None:
    """Raise ValueError unless `value` is an integer in ``0..count - 1``: Python would read -1 as the last one."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise ValueError(f"expected {name} in 0..{count - 1}{of}, got {value!r}")


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free. `needed` and `free` count blocks."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"needed {needed} free blocks, got {free}")
        self.needed = needed
        self.free = free


class BlockPool:
    """`num_blocks` physical blocks, numbered from 0, each with a reference count.

    The block that has been free for longest is handed out next; a new pool hands out 0, 1, 2, ... So a block
    keeps its old contents for as long as possible after it was freed.

    Invariant: ``num_free + num_referenced == num_blocks``, and a block is in the free queue exactly when its
    reference count is 0.
    """

    def __init__(self, num_blocks: int) -> None:
        check_count("num_blocks", num_blocks)
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._reference_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def num_referenced(self) -> int:
        """Blocks with at least one owner."""
        return self.num_blocks - len(self._free)

    def reference_count(self, block: int) -> int:
        """How many owners `block` has. Raises ValueError when there is no such block."""
        check_index("a block", block, self.num_blocks)
        return self._reference_counts[block]

    def allocate(self) -> int:
        """Take the block that has been free for longest; its reference count becomes 1.

        Raises OutOfBlocks when none is free.
        """
        if not self._free:
            raise OutOfBlocks(needed=1, free=0)
        block = self._free.popleft()
        self._reference_counts[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """Add an owner to a block that has one. Raises ValueError for a free block: nobody vouches for its contents."""
        self._check_owned(block)
        self._reference_counts[block] += 1

    def free(self, block: int) -> None:
        """Take one owner away; without owners the block joins the end of the free queue.

        Raises ValueError when the block is free already: a second `free` would give it two owners later.
        """
        self._check_owned(block)
        self._reference_counts[block] -= 1
        if self._reference_counts[block] == 0:
            self._free.append(block)

    def check_integrity(self) -> None:
        """Raise RuntimeError that says which invariant of this pool is broken. Costs O(num_blocks): for tests."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise RuntimeError(f"a block is in the free queue twice: {sorted(self._free)}")
        unreferenced = {block for block, count in enumerate(self._reference_counts) if count == 0}
        if free != unreferenced:
            raise RuntimeError(
                f"lost blocks (no owner, not free): {sorted(unreferenced - free)}; "
                f"free blocks with an owner: {sorted(free - unreferenced)}"
            )

    def _check_owned(self, block: int) -> None:
        check_index("a block", block, self.num_blocks)
        if self._reference_counts[block] == 0:
            raise ValueError(f"expected a block with an owner, got block {block}, which is free")
