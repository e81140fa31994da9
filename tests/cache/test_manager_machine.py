"""`KVCacheManager` against a naive model: thousands of orders of share, grow, fork, copy, cache, free and evict.

The model keeps a memory in which every computed token writes what its keys depend on: all tokens up to it. Whoever
reads back anything else shares a block wrongly, or lost one.
"""

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from servelab.cache import KVCacheManager, KVStorage, OutOfBlocks, PrefixIndex, hash_block

NAMES = "ABCDE"
# Mostly the same token, so that prompts begin alike.
TOKENS = st.sampled_from([0, 0, 0, 1])
SALTS = st.sampled_from([None, None, "x"])
HASHES = {
    "good": hash_block,
    "colliding": lambda parent_hash, tokens, salt: 0,
    "weak": lambda parent_hash, tokens, salt: sum(tokens) % 2,
}


class Sequence:
    """A request as the model knows it: its tokens, of which the first `computed` have written to memory."""

    def __init__(self, tokens, salt, computed=0):
        self.tokens, self.salt, self.computed = tokens, salt, computed
        self.table: list[int] = []
        self.num_cached = 0


class SharingMachine(RuleBasedStateMachine):
    """The naive prefix cache is a dictionary: all tokens up to a block's end, and the salt -> the block."""

    manager_type = KVCacheManager
    num_blocks = 7

    def __init__(self):
        super().__init__()
        self.manager = None

    @precondition(lambda self: self.manager is None)
    @rule(block_size=st.integers(1, 3), hashing=st.sampled_from(sorted(HASHES)))
    def start(self, block_size, hashing):
        self.block_size = block_size
        storage = KVStorage(1, self.num_blocks, block_size, 1, 1, format="int8")
        self.manager = self.manager_type(
            self.num_blocks, block_size, prefix_caching=True, hash_block=HASHES[hashing], storage=storage
        )
        self.sequences: dict[str, Sequence] = {}
        self.memory: dict[int, tuple[int, ...]] = {}
        self.findable: dict[tuple, int] = {}
        self.free_queue = list(range(self.num_blocks))
        self.evicted: list[int] = []
        self.seen: list[tuple[list[int], str | None]] = []

    def owners(self, block):
        return sum(block in sequence.table for sequence in self.sequences.values())

    def key(self, sequence, number):
        return (tuple(sequence.tokens[: (number + 1) * self.block_size]), sequence.salt)

    def known_prefix(self, tokens, salt):
        blocks = []
        for number in range((len(tokens) - 1) // self.block_size):
            block = self.findable.get((tuple(tokens[: (number + 1) * self.block_size]), salt))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def take(self):
        block = self.free_queue.pop(0)
        if block in self.findable.values():
            self.findable = {key: value for key, value in self.findable.items() if value != block}
            self.evicted.append(block)
        return block

    def missing(self, sequence, num_tokens):
        """Blocks, and a copy of the one that the next token goes to when others own it too."""
        new = len(range(0, num_tokens, self.block_size)) - len(sequence.table)
        tail = sequence.table[sequence.computed // self.block_size :][:1]
        return max(0, new) + sum(self.owners(block) > 1 for block in tail)

    def grow(self, name, num_tokens):
        """Allocate as the engine does, and copy what is shared. False when there is no room."""
        sequence = self.sequences[name]
        needed = self.missing(sequence, num_tokens)
        fits = needed <= len(self.free_queue)
        assert self.manager.num_missing(name, num_tokens) == needed
        assert self.manager.can_allocate(name, num_tokens) == fits
        if not fits:
            with pytest.raises(OutOfBlocks):
                self.manager.allocate(name, num_tokens)
            return False
        new = self.manager.allocate(name, num_tokens)
        expected = [self.take() for _ in range(len(range(0, num_tokens, self.block_size)) - len(sequence.table))]
        assert new == expected
        sequence.table += new
        self.own_tail(name)
        return True

    def own_tail(self, name):
        sequence = self.sequences[name]
        index = sequence.computed // self.block_size
        if index == len(sequence.table):
            return
        source, shared = sequence.table[index], self.owners(sequence.table[index]) > 1
        assert self.manager.needs_copy(name, sequence.computed) == shared
        copied = self.manager.copy_on_write(name, sequence.computed)
        if not shared:
            assert copied is None
            return
        target = self.take()
        assert copied == (index, source, target)
        sequence.table[index] = target
        for offset in range(self.block_size):
            self.memory[target * self.block_size + offset] = self.memory.get(source * self.block_size + offset, ())

    def unused_name(self):
        return next(name for name in NAMES if name not in self.sequences)

    @precondition(lambda self: self.manager is not None and len(self.sequences) < len(NAMES))
    @rule(tokens=st.lists(TOKENS, min_size=1, max_size=9), salt=SALTS, at_once=st.booleans())
    def submit(self, tokens, salt, at_once):
        name = self.unused_name()
        prefix = self.manager.match_prefix(tokens, salt)
        assert prefix == self.known_prefix(tokens, salt)
        needed = len(range(0, len(tokens), self.block_size)) - len(prefix)
        needed += sum(block in self.free_queue for block in prefix)
        fits = needed <= len(self.free_queue)
        assert self.manager.num_missing(name, len(tokens), prefix) == needed
        assert self.manager.can_allocate(name, len(tokens), prefix) == fits
        if not fits:
            return
        self.manager.share(name, prefix)
        sequence = self.sequences[name] = Sequence(list(tokens), salt, computed=len(prefix) * self.block_size)
        sequence.table, sequence.num_cached = list(prefix), len(prefix)
        self.free_queue = [block for block in self.free_queue if block not in prefix]
        assert self.grow(name, len(tokens))
        self.seen.append((tokens, salt))
        if at_once:
            self.compute(name, len(tokens))
            self.cache(name)

    @precondition(lambda self: self.manager is not None and self.seen and len(self.sequences) < len(NAMES))
    @rule(data=st.data(), more=st.lists(TOKENS, max_size=3))
    def submit_what_was_seen(self, data, more):
        tokens, salt = data.draw(st.sampled_from(self.seen))
        self.submit(tokens + more, salt, True)

    @precondition(lambda self: self.manager is not None and self.sequences)
    @rule(data=st.data(), most=st.integers(1, 9))
    def compute_a_chunk(self, data, most):
        self.compute(data.draw(st.sampled_from(sorted(self.sequences))), most)

    def compute(self, name, most):
        sequence = self.sequences[name]
        stop = min(len(sequence.tokens), sequence.computed + most)
        slots = self.manager.slots(name, sequence.computed, stop)
        for position, slot in zip(range(sequence.computed, stop), slots, strict=True):
            assert not self.manager.needs_copy(name, position)
            assert slot == self.manager.slot(name, position)
            self.memory[slot] = tuple(sequence.tokens[: position + 1])
        sequence.computed = stop

    @precondition(lambda self: self.manager is not None and self.sequences)
    @rule(data=st.data())
    def cache_one(self, data):
        self.cache(data.draw(st.sampled_from(sorted(self.sequences))))

    def cache(self, name):
        sequence = self.sequences[name]
        found = []
        if sequence.computed // self.block_size > sequence.num_cached:
            sequence.num_cached = sequence.computed // self.block_size
            for number in range(sequence.num_cached):
                if self.key(sequence, number) not in self.findable:
                    self.findable[self.key(sequence, number)] = sequence.table[number]
                    found.append((number, sequence.table[number]))
        assert self.manager.cache_full_blocks(name, sequence.tokens, sequence.salt, sequence.computed) == found

    @precondition(lambda self: self.manager is not None and self.sequences)
    @rule(data=st.data(), token=TOKENS)
    def append_one(self, data, token):
        self.append(data.draw(st.sampled_from(sorted(self.sequences))), token)

    def append(self, name, token):
        sequence = self.sequences[name]
        if self.grow(name, len(sequence.tokens) + 1):
            sequence.tokens.append(token)

    @precondition(lambda self: self.manager is not None and 0 < len(self.sequences) < len(NAMES))
    @rule(data=st.data(), first=st.sampled_from([None, 0, 1]), second=st.sampled_from([None, 0, 1]))
    def fork(self, data, first, second):
        parent, child = data.draw(st.sampled_from(sorted(self.sequences))), self.unused_name()
        sequence = self.sequences[parent]
        self.compute(parent, len(sequence.tokens))  # a prompt is forked when all of it is computed
        assert self.manager.fork(parent, child) == sequence.table
        forked = self.sequences[child] = Sequence(list(sequence.tokens), sequence.salt, sequence.computed)
        forked.table, forked.num_cached = list(sequence.table), sequence.num_cached
        for name, token in ((parent, first), (child, second)):
            if token is not None:
                self.append(name, token)

    @precondition(lambda self: self.manager is not None and self.sequences)
    @rule(data=st.data())
    def free(self, data):
        name = data.draw(st.sampled_from(sorted(self.sequences)))
        blocks = self.sequences.pop(name).table[::-1]
        assert self.manager.free(name) == blocks
        assert self.manager.free(name) == []
        self.free_queue += [block for block in blocks if not self.owners(block)]

    @precondition(lambda self: self.manager is not None)
    @invariant()
    def manager_and_model_agree(self):
        self.manager.check_integrity()
        assert self.manager.take_evictions() == self.evicted
        self.evicted = []
        pool = self.manager.pool
        assert self.manager.num_free == len(self.free_queue)
        assert pool.num_cached == len(set(self.free_queue) & set(self.findable.values()))
        assert sorted(self.manager.request_ids) == sorted(self.sequences)
        for name, sequence in self.sequences.items():
            assert self.manager.block_table(name) == sequence.table
            self.holds(sequence.table, sequence.tokens[: sequence.computed])
        for (tokens, _), block in self.findable.items():
            start = len(tokens) - self.block_size
            for offset in range(self.block_size):
                assert self.memory[block * self.block_size + offset] == tokens[: start + offset + 1]

    def holds(self, table, tokens):
        for position in range(len(tokens)):
            slot = table[position // self.block_size] * self.block_size + position % self.block_size
            assert self.memory[slot] == tuple(tokens[: position + 1])

    @precondition(lambda self: self.manager is not None)
    @invariant()
    def every_byte_is_accounted_for(self):
        memory = self.manager.memory()
        token_bytes = 2 * (1 + 2)
        filled: dict[int, int] = {}
        for sequence in self.sequences.values():
            for index, block in enumerate(sequence.table):
                tokens = min(self.block_size, len(sequence.tokens) - index * self.block_size)
                filled[block] = max(tokens, filled.get(block, 0))
        assert memory.used == sum(filled.values()) * token_bytes
        assert memory.rounding == len(filled) * self.block_size * token_bytes - memory.used
        assert memory.cached == self.manager.pool.num_cached * self.block_size * token_bytes
        assert memory.used + memory.rounding + memory.cached + memory.free == memory.total
        assert memory.total == self.manager.storage.memory() == self.num_blocks * self.block_size * token_bytes


TestSharingMachine = SharingMachine.TestCase
TestSharingMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# The first counterexample will do: no shrinking, and the same ones every time.
PLANTED = settings(
    max_examples=300, stateful_step_count=40, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
)


def replaced(name, function, of=KVCacheManager):
    """A fault: method `name` of the manager, or of its prefix index, is replaced."""

    def plant(monkeypatch):
        monkeypatch.setattr(of, name, function)

    return plant


find_as_it_is = PrefixIndex._look_up
match_as_it_is = PrefixIndex.match
share_as_it_is = KVCacheManager.share
copy_as_it_is = KVCacheManager.copy_on_write
fork_as_it_is = KVCacheManager.fork
cache_as_it_is = KVCacheManager.cache_full_blocks


def look_up_by_hash_alone(self, key, parent, tokens, salt):
    return next(iter(self._entries.get(key, ())), None)


def look_up_without_salt(self, key, parent, tokens, salt):
    found = (entry for entry in self._entries.get(key, ()) if (entry.parent, entry.tokens) == (parent, tokens))
    return next(found, None)


def look_up_without_parent(self, key, parent, tokens, salt):
    found = (entry for entry in self._entries.get(key, ()) if (entry.tokens, entry.salt) == (tokens, salt))
    return next(found, None)


def match_every_token(self, token_ids, salt=None):
    return self._prefixes.match(token_ids, salt, len(token_ids) // self.block_size)


def take_without_forgetting(self):
    return self.pool.allocate()


def share_without_owning(self, request_id, blocks):
    share_as_it_is(self, request_id, blocks)
    for block in blocks:
        self.pool.free(block)


def copy_and_keep_the_source(self, request_id, position):
    copied = copy_as_it_is(self, request_id, position)
    if copied:
        self.pool.acquire(copied[1])
    return copied


def never_copy(self, request_id, position):
    return None


def fork_the_full_blocks_only(self, parent_id, child_id):
    blocks = fork_as_it_is(self, parent_id, child_id)
    self.pool.free(self._tables[child_id].blocks.pop())
    return blocks


def cache_the_last_block_early(self, request_id, token_ids, salt=None, num_tokens=None):
    return cache_as_it_is(self, request_id, token_ids, salt, min(len(token_ids), num_tokens + 1))


def missing_without_unowned(self, request_id, num_tokens, prefix=()):
    held = len(prefix) * self.block_size or self.num_slots_held(request_id)
    return max(0, -(-num_tokens // self.block_size) - held // self.block_size)


def free_the_first_block_first(self, request_id):
    table = self._tables.pop(request_id, None)
    for block in table.blocks if table else []:
        self.pool.free(block)
    return table.blocks[::-1] if table else []


@pytest.mark.parametrize(
    "plant",
    [
        replaced("_look_up", look_up_by_hash_alone, PrefixIndex),
        replaced("_look_up", look_up_without_salt, PrefixIndex),
        replaced("_look_up", look_up_without_parent, PrefixIndex),
        replaced("match_prefix", match_every_token),
        replaced("_take", take_without_forgetting),
        replaced("share", share_without_owning),
        replaced("copy_on_write", copy_and_keep_the_source),
        replaced("copy_on_write", never_copy),
        replaced("fork", fork_the_full_blocks_only),
        replaced("cache_full_blocks", cache_the_last_block_early),
        replaced("num_missing", missing_without_unowned),
        replaced("free", free_the_first_block_first),
    ],
    ids=lambda plant: plant.__closure__[0].cell_contents.__name__,
)
def test_the_machine_catches_a_planted_fault(plant, monkeypatch):
    plant(monkeypatch)
    faults = (AssertionError, RuntimeError, ValueError, KeyError, IndexError, pytest.fail.Exception)
    with pytest.raises(faults):
        run_state_machine_as_test(SharingMachine, settings=PLANTED)


def test_the_storage_of_the_machine_counts_scales():
    assert KVStorage(1, 1, 1, 1, 1, dtype=torch.float32, format="int8").memory() == 2 * (1 + 2)
