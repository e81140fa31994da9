"""`KVCacheManager`: the block table of every request (PagedAttention, Kwon et al. 2023, sections 4.2 to 4.4).

A block table maps logical to physical: token `position` of a request lies in the request's logical block
``position // block_size``, and entry number that of its table says which physical block this is.

Two requests may have the same physical block in their tables, in two cases:

- **Prefix caching.** Full blocks of computed tokens can be found by later requests that begin with the same tokens
  (`match_prefix`, `share`), until the block is handed out again. Nobody writes to them: they are full.
- **Copy on write.** Samples of one prompt (`fork`) begin with the same table. Who writes to a block with other owners
  first gets a copy of its own (`copy_on_write`).
"""

from collections import Counter
from collections.abc import Sequence

from servelab.cache.memory import CacheMemory, cache_memory, check_storage
from servelab.cache.pool import BlockPool, OutOfBlocks, check_count, check_index
from servelab.cache.prefix import Entry, HashBlock, PrefixIndex, hash_block
from servelab.cache.storage import KVStorage
from servelab.costs import blocks_needed


class BlockTable:
    """What the manager knows of one request.

    blocks: its physical blocks in logical order. num_tokens: tokens for which it was last given room.
    entries: the prefix entries of its leading full blocks; the block of an entry may be another request's.
    room: tokens that need neither a new block nor a copy; 0 when its last block may have other owners.
    """

    __slots__ = ("blocks", "entries", "num_tokens", "room")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.num_tokens = 0
        self.entries: list[Entry] = []
        self.room = 0


class KVCacheManager:
    """Block tables over one `BlockPool`. A *slot* is the place of one token: ``block * block_size + offset``.

    prefix_caching: let full blocks be found again. hash_block: see `PrefixIndex`. storage: the tensors that the blocks
    stand for, to account for their bytes (`memory`). Raises ValueError for sizes below 1 or a storage of other size.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = False,
        hash_block: HashBlock = hash_block,
        storage: KVStorage | None = None,
    ) -> None:
        check_count("block_size", block_size)
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.prefix_caching = prefix_caching
        check_storage(storage, num_blocks, block_size)
        self.storage = storage
        self._prefixes = PrefixIndex(block_size, hash_block)
        self._tables: dict[str, BlockTable] = {}
        self._evictions: list[int] = []

    @property
    def num_free(self) -> int:
        """Free memory in this manager's unit: blocks, cached ones included."""
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

    def match_prefix(self, token_ids: Sequence[int], salt: str | None = None) -> list[int]:
        """The blocks of the longest cached beginning of `token_ids`, for `share`. They are not taken yet.

        Never all tokens: at least the last one is to be computed, or there would be no logits to choose the next from.
        salt: only blocks that were cached under the same one match, so that tenants cannot probe each other's prompts.
        """
        return self._prefixes.match(token_ids, salt, (len(token_ids) - 1) // self.block_size)

    def num_missing(self, request_id: str, num_tokens: int, prefix: Sequence[int] = ()) -> int:
        """Free blocks that it takes to give the request room for `num_tokens` tokens in all.

        New blocks, one more for each shared block that it would write to and so must copy, and, for a new request
        that would begin with the blocks of `prefix` (`match_prefix`), those of them that nobody owns now.
        """
        table = self._tables.get(request_id)
        if table is not None and type(num_tokens) is int and 0 < num_tokens <= table.room:
            return 0
        num_blocks = blocks_needed(num_tokens, self.block_size)
        if table is not None:
            written = self._tail(table, num_blocks) if num_tokens > table.num_tokens else ()
            return max(0, num_blocks - len(table.blocks)) + sum(map(self.pool.is_shared, written))
        unowned = sum(not self.pool.reference_count(block) for block in prefix)
        return max(0, num_blocks - len(prefix)) + unowned

    def can_allocate(self, request_id: str, num_tokens: int, prefix: Sequence[int] = ()) -> bool:
        """Whether `share` of the prefix, `allocate` and then `copy_on_write` would succeed now."""
        num_missing = self.num_missing(request_id, num_tokens, prefix)
        return num_missing == 0 or num_missing <= self.pool.num_free

    def share(self, request_id: str, blocks: Sequence[int]) -> None:
        """Begin a new request's table with cached blocks, as `match_prefix` returned them; each gets one more owner.

        Raises ValueError, and changes nothing, when the request holds blocks already or these are no cached prefix.
        """
        self._check_new(request_id)
        if not blocks:
            return
        entries: list[Entry] = []
        for block in blocks:
            entry = self._prefixes.entry_of(block)
            if entry is None or entry.parent is not (entries[-1] if entries else None):
                raise ValueError(f"expected the blocks of a cached prefix, got {list(blocks)}")
            entries.append(entry)
        for block in blocks:
            self.pool.acquire(block)
        table = self._tables[request_id] = BlockTable()
        table.blocks, table.entries = list(blocks), entries
        table.num_tokens = table.room = len(blocks) * self.block_size

    def allocate(self, request_id: str, num_tokens: int) -> list[int]:
        """Grow the request's block table until it covers `num_tokens` tokens in all; return the new blocks.

        A new request starts with an empty table. Most calls while decoding return ``[]``: the last block has room.
        All or nothing: raises OutOfBlocks, and takes no block, when too few are free (a copy on write included).
        """
        table = self._tables.get(request_id)
        if table is not None and type(num_tokens) is int and 0 < num_tokens <= table.room:
            table.num_tokens = num_tokens
            return []
        check_count("num_tokens", num_tokens)
        num_missing = self.num_missing(request_id, num_tokens)
        if num_missing > self.pool.num_free:
            raise OutOfBlocks(needed=num_missing, free=self.pool.num_free)
        table = self._tables.setdefault(request_id, BlockTable())
        must_copy = any(map(self.pool.is_shared, self._tail(table)))
        num_new = blocks_needed(num_tokens, self.block_size) - len(table.blocks)
        new_blocks = [self._take() for _ in range(num_new)]
        table.blocks += new_blocks
        table.num_tokens = num_tokens
        table.room = 0 if must_copy else len(table.blocks) * self.block_size
        return new_blocks

    def fork(self, parent_id: str, child_id: str) -> list[int]:
        """Give a new request the parent's whole table; return it. Each block gets one more owner.

        Raises ValueError, and changes nothing, when the parent holds no blocks or the child does.
        """
        parent = self._table(parent_id)
        self._check_new(child_id)
        for block in parent.blocks:
            self.pool.acquire(block)
        child = self._tables[child_id] = BlockTable()
        child.blocks, child.entries = list(parent.blocks), list(parent.entries)
        child.num_tokens = parent.num_tokens
        parent.room = child.room = 0
        return list(child.blocks)

    def needs_copy(self, request_id: str, position: int) -> bool:
        """Whether the block of token `position` has other owners, so that writing to it takes a copy first."""
        table = self._table(request_id)
        return self.pool.is_shared(table.blocks[self._index(request_id, table, position)])

    def copy_on_write(self, request_id: str, position: int) -> tuple[int, int, int] | None:
        """Give the request its own block for token `position`, if that block has other owners.

        Returns ``(index, source, block)``: entry `index` of the table is now `block`, to which the content of `source`
        must be copied before anything is written (`KVStorage.copy_blocks`). None when the block was its own already.
        Raises OutOfBlocks, and changes nothing, when no block is free.
        """
        if not self.needs_copy(request_id, position):
            return None
        table = self._table(request_id)
        index = position // self.block_size
        source, block = table.blocks[index], self._take()
        self.pool.free(source)
        table.blocks[index] = block
        del table.entries[index:]
        return index, source, block

    def cache_full_blocks(
        self, request_id: str, token_ids: Sequence[int], salt: str | None = None, num_tokens: int | None = None
    ) -> list[tuple[int, int]]:
        """Let the full blocks of computed tokens be found by others; return the newly findable ``(index, block)``.

        token_ids: the request's tokens; the keys and values of the first `num_tokens` of them (default all) are
        written. A block whose tokens another block holds already stays unknown: one is enough. Cheap when no
        block became full since the last call. Raises ValueError for more tokens than the request has slots, and for
        tokens or a salt that differ from those of the last call.
        """
        table = self._table(request_id)
        num_full = (len(token_ids) if num_tokens is None else num_tokens) // self.block_size
        if num_full <= len(table.entries) or not self.prefix_caching:
            return []
        if num_full > len(table.blocks):
            raise ValueError(
                f"expected at most {self._num_slots(table)} computed tokens of request {request_id!r} (its slots), "
                f"got {len(token_ids) if num_tokens is None else num_tokens}"
            )
        self._check_tokens(request_id, table, token_ids, salt)
        # Where another request's block stood for the same tokens, and is gone, this one's takes its place.
        del table.entries[next((i for i, entry in enumerate(table.entries) if entry.block is None), num_full) :]
        found = []
        for index in range(len(table.entries), num_full):
            block, parent = table.blocks[index], table.entries[-1] if table.entries else None
            entry = self._prefixes.insert(parent, self._prefixes.tokens_of(token_ids, index), salt)
            if entry.block is None:
                self._prefixes.assign(entry, block)
                self.pool.keep(block)
                found.append((index, block))
            table.entries.append(entry)
        return found

    def take_evictions(self) -> list[int]:
        """The blocks whose cached content was lost since the last call, because they were handed out again."""
        evictions, self._evictions = self._evictions, []
        return evictions

    def free(self, request_id: str) -> list[int]:
        """Give all blocks of the request back, the last one first; return them in that order.

        A request that holds nothing (it waits, or was freed before) gives back ``[]``.
        """
        if request_id not in self._tables:
            return []
        # The end of a request is worth least to others, so it should be the first to be overwritten.
        blocks = self._tables.pop(request_id).blocks[::-1]
        for block in blocks:
            self.pool.free(block)
        return blocks

    def trim(self, request_id: str, num_tokens: int) -> list[int]:
        """Give back the blocks behind the request's first `num_tokens` tokens, the last one first; return them so.

        For slots that only rejected draft tokens needed. What they hold is worth nothing, so these blocks are the next
        to be handed out, and nothing that the prefix cache knows goes for them. Raises ValueError when the request
        holds no blocks, or num_tokens is below 1.
        """
        check_count("num_tokens", num_tokens)
        table = self._table(request_id)
        num_kept = blocks_needed(num_tokens, self.block_size)
        blocks = table.blocks[: num_kept - 1 : -1]
        for block in blocks:
            self.pool.free(block, next_out=True)
        del table.blocks[num_kept:], table.entries[num_kept:]
        table.num_tokens = min(table.num_tokens, num_tokens)
        if table.room:
            must_copy = any(map(self.pool.is_shared, self._tail(table)))
            table.room = 0 if must_copy else self._num_slots(table)
        return blocks

    def block_table(self, request_id: str) -> list[int]:
        """A copy of the request's table: physical blocks in logical order. Raises ValueError when it holds none."""
        return list(self._table(request_id).blocks)

    def num_slots_held(self, request_id: str) -> int:
        """Tokens that the request's blocks have room for; 0 when it holds none."""
        return len(self._tables[request_id].blocks) * self.block_size if request_id in self._tables else 0

    def slot(self, request_id: str, position: int) -> int:
        """The slot of token `position`. Raises ValueError when the table does not reach that far."""
        table = self._table(request_id)
        index = self._index(request_id, table, position)
        return table.blocks[index] * self.block_size + position % self.block_size

    def slots(self, request_id: str, start: int, stop: int) -> list[int]:
        """The slots of the tokens ``start .. stop - 1``. Raises ValueError when the table does not reach that far."""
        table, size = self._table(request_id), self.block_size
        num_slots = len(table.blocks) * size
        if not 0 <= start <= stop <= num_slots:
            raise ValueError(
                f"expected 0 <= start <= stop <= {num_slots} (the slots of request {request_id!r}), "
                f"got {start} and {stop}"
            )
        if stop - start == 1:  # a request that decodes
            return [table.blocks[start // size] * size + start % size]
        slots: list[int] = []
        for block in table.blocks[start // size : -(-stop // size)]:
            slots += range(block * size, block * size + size)
        return slots[start % size : start % size + stop - start]

    def memory(self) -> CacheMemory:
        """Where every byte of the storage is. Raises ValueError when the manager was given no storage."""
        filled: dict[int, int] = {}
        for table in self._tables.values():
            for index, block in enumerate(table.blocks):
                tokens = min(self.block_size, table.num_tokens - index * self.block_size)
                filled[block] = max(tokens, filled.get(block, 0))
        return cache_memory(
            self.storage,
            used_slots=sum(filled.values()),
            held_slots=len(filled) * self.block_size,
            cached_slots=self.pool.num_cached * self.block_size,
        )

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every block has as many owners as its reference count says, and no table has one
        twice; the content of exactly those blocks is kept that a prefix leads to; and the pool and the tree are whole.

        Together: blank + cached + referenced blocks = total, and no block has an owner it does not know.
        """
        self.pool.check_integrity()
        self._prefixes.check_integrity()
        owners = Counter(block for table in self._tables.values() for block in table.blocks)
        for block in range(self.pool.num_blocks):
            if owners[block] != self.pool.reference_count(block):
                raise RuntimeError(
                    f"block {block} is in {owners[block]} tables, "
                    f"its reference count is {self.pool.reference_count(block)}"
                )
            if self.pool.is_kept(block) != (self._prefixes.entry_of(block) is not None):
                raise RuntimeError(f"block {block}: kept {self.pool.is_kept(block)}, but its prefix says otherwise")
        for request_id, table in self._tables.items():
            if not table.blocks or len(set(table.blocks)) != len(table.blocks):
                raise RuntimeError(f"request {request_id!r} has an empty table or a block twice: {table.blocks}")
            if len(table.entries) > len(table.blocks) or table.room not in (0, self._num_slots(table)):
                raise RuntimeError(f"request {request_id!r} counts more than its blocks: {len(table.entries)} entries")

    def _check_tokens(self, request_id: str, table: BlockTable, token_ids: Sequence[int], salt: str | None) -> None:
        if not table.entries:
            return
        index, last = len(table.entries) - 1, table.entries[-1]
        tokens = self._prefixes.tokens_of(token_ids, index)
        if (tokens, salt) != (last.tokens, last.salt):
            raise ValueError(
                f"expected block {index} of request {request_id!r} to hold {last.tokens}, salt {last.salt!r}, as it "
                f"was cached, got {tokens}, salt {salt!r}"
            )

    def _take(self) -> int:
        block = self.pool.allocate()
        if self._prefixes.forget(block):
            self._evictions.append(block)
        return block

    def _tail(self, table: BlockTable, stop: int | None = None) -> list[int]:
        """The blocks that the next tokens go to, up to number `stop`: usually the last, or none when that is full."""
        return table.blocks[table.num_tokens // self.block_size : stop]

    def _num_slots(self, table: BlockTable) -> int:
        return len(table.blocks) * self.block_size

    def _index(self, request_id: str, table: BlockTable, position: int) -> int:
        check_index("a position", position, self._num_slots(table), f" of request {request_id!r}")
        return position // self.block_size

    def _table(self, request_id: str) -> BlockTable:
        table = self._tables.get(request_id)
        if table is None:
            raise ValueError(f"expected a request that holds blocks, got {request_id!r}")
        return table

    def _check_new(self, request_id: str) -> None:
        if request_id in self._tables:
            raise ValueError(f"expected a new request, got {request_id!r}, which holds blocks")
