"""`PrefixIndex`: which block holds the keys and values of which tokens, behind which other tokens.

The key of token i depends on token i and its position, the value too, and in all layers but the first both depend on
every token before i. So a block may serve another request only when *all* tokens up to its end are the same. Each
full block is one entry of a tree, below the entry of the block before it:

                     (no parent)
                    /           \\
        [You are a help]     [Once upon a ti]         an entry: its 4 tokens, its parent, the block that holds them
            /       \\
    [ful bot.]  [ful dog.]

An entry is found by a hash of its parent's hash, its tokens and a salt (one lookup a block, however long the prefix),
and then its tokens, salt and parent are compared: a hash that collides costs time, and never a wrong block.

When a block is handed out again its entry loses it. The entry itself stays while entries below it have blocks: their
content is as right as before, and can be reached again as soon as somebody has computed the missing block anew.
"""

from collections.abc import Callable, Hashable, Sequence

HashBlock = Callable[[Hashable, tuple[int, ...], str | None], Hashable]


def hash_block(parent_hash: Hashable, tokens: tuple[int, ...], salt: str | None) -> Hashable:
    """Python's own hash of the three. It need not be cryptographic: whatever it finds is compared."""
    return hash((parent_hash, tokens, salt))


class Entry:
    """The tokens of one full block behind those of `parent` (None: at the start), and the block that holds them.

    block: None once the block was handed out again. Entries are compared by identity.
    """

    __slots__ = ("block", "hash", "num_children", "parent", "salt", "tokens")

    def __init__(self, parent: "Entry | None", tokens: tuple[int, ...], salt: str | None, key: Hashable) -> None:
        self.parent = parent
        self.tokens = tokens
        self.salt = salt
        self.hash = key
        self.block: int | None = None
        self.num_children = 0


class PrefixIndex:
    """The tree of entries over blocks of `block_size` tokens.

    hash_block: ``(parent_hash, tokens, salt) -> hashable``; parent_hash is None for the first block of a request.
    """

    def __init__(self, block_size: int, hash_block: HashBlock = hash_block) -> None:
        self.block_size = block_size
        self.hash_block = hash_block
        self._entries: dict[Hashable, list[Entry]] = {}
        self._by_block: dict[int, Entry] = {}

    def match(self, token_ids: Sequence[int], salt: str | None, max_blocks: int) -> list[int]:
        """The blocks that hold the longest known beginning of `token_ids`, at most `max_blocks`."""
        blocks: list[int] = []
        entry: Entry | None = None
        for index in range(max_blocks):
            entry = self.find(entry, self.tokens_of(token_ids, index), salt)
            if entry is None or entry.block is None:
                break
            blocks.append(entry.block)
        return blocks

    def tokens_of(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        """The tokens of block number `index` of a request."""
        return tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])

    def find(self, parent: Entry | None, tokens: tuple[int, ...], salt: str | None) -> Entry | None:
        """The entry of exactly these tokens below exactly this parent, under this salt."""
        return self._look_up(self._hash(parent, tokens, salt), parent, tokens, salt)

    def insert(self, parent: Entry | None, tokens: tuple[int, ...], salt: str | None) -> Entry:
        """The entry that `find` returns, made where there is none. A new one has no block: `assign` gives it one."""
        key = self._hash(parent, tokens, salt)
        entry = self._look_up(key, parent, tokens, salt)
        if entry is None:
            entry = Entry(parent, tokens, salt, key)
            self._entries.setdefault(key, []).append(entry)
            if parent is not None:
                parent.num_children += 1
        return entry

    def assign(self, entry: Entry, block: int) -> None:
        """Let `block`, which has no entry, be the one that holds the tokens of `entry`, which has no block."""
        assert entry.block is None
        assert block not in self._by_block
        entry.block = block
        self._by_block[block] = entry

    def entry_of(self, block: int) -> Entry | None:
        """The entry whose tokens `block` holds, None when it cannot be found."""
        return self._by_block.get(block)

    def forget(self, block: int) -> bool:
        """The block's content is lost: no lookup returns it any more. Returns whether one could before."""
        entry = self._by_block.pop(block, None)
        if entry is None:
            return False
        entry.block = None
        self._prune(entry)
        return True

    def check_integrity(self) -> None:
        """Raise RuntimeError unless blocks and entries are one to one, and each entry is needed and stands in place."""
        entries = [entry for bucket in self._entries.values() for entry in bucket]
        children: dict[int, int] = {}
        for entry in entries:
            if entry.parent is not None:
                children[id(entry.parent)] = children.get(id(entry.parent), 0) + 1
        holders = {entry.block: entry for entry in entries if entry.block is not None}
        if holders != self._by_block or len(holders) != sum(entry.block is not None for entry in entries):
            raise RuntimeError(f"blocks and entries differ: {sorted(holders)} and {sorted(self._by_block)}")
        for entry in entries:
            if entry.num_children != children.pop(id(entry), 0):
                raise RuntimeError(f"the entry of block {entry.block} counts {entry.num_children} children, wrongly")
            if entry.block is None and not entry.num_children:
                raise RuntimeError(f"an entry without block and children stayed: {entry.tokens}")
            if len(entry.tokens) != self.block_size or self.find(entry.parent, entry.tokens, entry.salt) is not entry:
                raise RuntimeError(f"the entry of block {entry.block} is not found under its tokens {entry.tokens}")
        if children:
            raise RuntimeError(f"{len(children)} parents are no entries themselves")

    def _hash(self, parent: Entry | None, tokens: tuple[int, ...], salt: str | None) -> Hashable:
        return self.hash_block(None if parent is None else parent.hash, tokens, salt)

    def _look_up(self, key: Hashable, parent: Entry | None, tokens: tuple[int, ...], salt: str | None) -> Entry | None:
        for entry in self._entries.get(key, ()):
            if entry.parent is parent and entry.tokens == tokens and entry.salt == salt:
                return entry
        return None

    def _prune(self, entry: Entry | None) -> None:
        """Drop the entry if neither it nor one below it has a block, and then its parent likewise."""
        while entry is not None and entry.block is None and not entry.num_children:
            bucket = self._entries[entry.hash]
            bucket.remove(entry)
            if not bucket:
                del self._entries[entry.hash]
            entry = entry.parent
            if entry is not None:
                entry.num_children -= 1
