"""`BlockPool`: which physical blocks are free, how many owners each of the others has, and which keep their content.

The pool knows block numbers only. It knows neither requests (`manager.py`) nor what a block's content is
(`prefix.py`) nor tensors (`storage.py`).
"""

from collections import OrderedDict


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
    keeps its old content for as long as possible after it was freed. Where that content is worth finding again
    (`keep`), the free block is *cached*: it can get an owner again (`acquire`) until it is handed out as a new one.
    The order of the free queue is then that of least recent use. A block whose content is worth nothing may be freed
    to the head of the queue (`next_out`), so that it goes before those whose content is worth finding.

    Invariant: blank + cached + referenced blocks = `num_blocks`; blank and cached ones, and only they, are in the
    free queue, and have a reference count of 0.
    """

    def __init__(self, num_blocks: int) -> None:
        check_count("num_blocks", num_blocks)
        self.num_blocks = num_blocks
        # A queue whose middle can be taken out in the same time as its ends: a cached block gets an owner again.
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._reference_counts = [0] * num_blocks
        self._kept: set[int] = set()
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns, cached ones included: all of them can be handed out."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody owns and whose content can still be found."""
        return self._num_cached

    @property
    def num_referenced(self) -> int:
        """Blocks with at least one owner."""
        return self.num_blocks - len(self._free)

    def reference_count(self, block: int) -> int:
        """How many owners `block` has. Raises ValueError when there is no such block."""
        check_index("a block", block, self.num_blocks)
        return self._reference_counts[block]

    def is_shared(self, block: int) -> bool:
        """Whether `block`, which must be one of the pool's, has more than one owner."""
        return self._reference_counts[block] > 1

    def is_kept(self, block: int) -> bool:
        """Whether the content of `block` can be found, with an owner or without. Raises ValueError outside the pool."""
        check_index("a block", block, self.num_blocks)
        return block in self._kept

    def allocate(self) -> int:
        """Take the block that has been free for longest; its reference count becomes 1, its content is forgotten.

        Raises OutOfBlocks when none is free.
        """
        if not self._free:
            raise OutOfBlocks(needed=1, free=0)
        block, _ = self._free.popitem(last=False)
        self._reference_counts[block] = 1
        if block in self._kept:
            self._kept.remove(block)
            self._num_cached -= 1
        return block

    def keep(self, block: int) -> None:
        """Let the content of an owned block be found until the block is handed out again, freed or not.

        Raises ValueError for a free block: nobody vouches for its content.
        """
        self._check_owned(block)
        self._kept.add(block)

    def acquire(self, block: int) -> None:
        """Add an owner to a block that has one, or whose content was kept.

        Raises ValueError for any other free block: nobody vouches for its content.
        """
        if self.is_kept(block) and self._reference_counts[block] == 0:
            del self._free[block]
            self._num_cached -= 1
        else:
            self._check_owned(block)
        self._reference_counts[block] += 1

    def free(self, block: int, *, next_out: bool = False) -> None:
        """Take one owner away; without owners the block joins the end of the free queue, or its head with `next_out`.

        Raises ValueError when the block is free already: a second `free` would give it two owners later.
        """
        self._check_owned(block)
        self._reference_counts[block] -= 1
        if self._reference_counts[block] == 0:
            self._free[block] = None
            if next_out:
                self._free.move_to_end(block, last=False)
            self._num_cached += block in self._kept

    def check_integrity(self) -> None:
        """Raise RuntimeError that says which invariant of this pool is broken. Costs O(num_blocks): for tests."""
        unreferenced = {block for block, count in enumerate(self._reference_counts) if count == 0}
        if self._free.keys() != unreferenced:
            raise RuntimeError(
                f"lost blocks (no owner, not free): {sorted(unreferenced - self._free.keys())}; "
                f"free blocks with an owner: {sorted(self._free.keys() - unreferenced)}"
            )
        cached = len(self._kept & unreferenced)
        if cached != self._num_cached:
            raise RuntimeError(f"{cached} free blocks keep their content, {self._num_cached} were counted")

    def _check_owned(self, block: int) -> None:
        check_index("a block", block, self.num_blocks)
        if self._reference_counts[block] == 0:
            raise ValueError(f"expected a block with an owner, got block {block}, which is free")
