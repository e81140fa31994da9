"""`PrefixIndex`: the same tokens behind the same tokens and no others, whatever the hash; nothing lost is found."""

import pytest

from servelab.cache import PrefixIndex, hash_block


def collide(parent_hash, tokens, salt):
    return 0


HASHES = [hash_block, collide]


def index_with(*prefixes: tuple[list[int], list[int]], salt: str | None = None, hashing=hash_block) -> PrefixIndex:
    """Blocks of 2 tokens; each prefix is (tokens, the blocks that hold them)."""
    index = PrefixIndex(2, hashing)
    for tokens, blocks in prefixes:
        entry = None
        for number, block in enumerate(blocks):
            entry = index.insert(entry, index.tokens_of(tokens, number), salt)
            if entry.block is None:
                index.assign(entry, block)
    index.check_integrity()
    return index


@pytest.mark.parametrize("hashing", HASHES)
def test_the_longest_known_beginning_is_found(hashing):
    index = index_with(([1, 2, 3, 4, 5, 6], [7, 8, 9]), hashing=hashing)
    assert index.match([1, 2, 3, 4, 5, 6], None, 3) == [7, 8, 9]
    assert index.match([1, 2, 3, 4, 0, 6], None, 3) == [7, 8]
    assert index.match([1, 2, 3, 4, 5, 6], None, 1) == [7]
    assert index.match([1, 2, 3, 4, 5, 6], None, 0) == []
    assert index.match([1, 2, 3, 4, 5, 6], None, -1) == []
    assert index.match([2, 1, 3, 4], None, 2) == []


@pytest.mark.parametrize("hashing", HASHES)
def test_the_same_tokens_behind_others_are_another_entry(hashing):
    """Keys and values depend on all tokens before: 3, 4 behind 1, 2 is not 3, 4 behind 5, 6, nor at the start."""
    index = index_with(([1, 2, 3, 4], [0, 1]), ([5, 6, 3, 4], [2, 3]), hashing=hashing)
    assert index.match([1, 2, 3, 4], None, 2) == [0, 1]
    assert index.match([5, 6, 3, 4], None, 2) == [2, 3]
    assert index.match([3, 4], None, 1) == []
    assert index.match([1, 2, 1, 2], None, 2) == [0]


@pytest.mark.parametrize("hashing", HASHES)
@pytest.mark.parametrize("salt", ["a", ""])
def test_a_salt_separates(hashing, salt):
    index = index_with(([1, 2, 3, 4], [0, 1]), salt=salt, hashing=hashing)
    assert index.match([1, 2, 3, 4], salt, 2) == [0, 1]
    for other in (None, "b", "A"):
        assert index.match([1, 2, 3, 4], other, 2) == []


def test_an_always_colliding_hash_finds_nothing_but_the_right_block():
    """Different tokens never share a block, whatever the hash says [vllm#8229]."""
    prompts = [[a, b, c, d] for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
    index, known = PrefixIndex(2, collide), {}
    for tokens in prompts:
        entry = None
        for number in range(2):
            entry = index.insert(entry, index.tokens_of(tokens, number), None)
            if entry.block is None:
                index.assign(entry, len(known))
                known[tuple(tokens[: 2 * number + 2])] = entry.block
    index.check_integrity()
    assert len(known) == 9 + 81
    for tokens in prompts:
        assert index.match(tokens, None, 2) == [known[tuple(tokens[:2])], known[tuple(tokens)]]


@pytest.mark.parametrize("hashing", HASHES)
def test_a_forgotten_block_no_longer_answers(hashing):
    """A block that is evicted and used again no longer answers to its old hash [MinivLLM#87], but to its new one."""
    index = index_with(([1, 2, 3, 4], [0, 1]), hashing=hashing)
    assert index.forget(1) is True
    assert index.forget(1) is False
    assert index.match([1, 2, 3, 4], None, 2) == [0]
    assert index.entry_of(1) is None
    index.check_integrity()
    index.assign(index.insert(None, (5, 6), None), 1)
    assert index.match([5, 6], None, 1) == [1]
    assert index.match([1, 2, 3, 4], None, 2) == [0]
    index.check_integrity()


@pytest.mark.parametrize("hashing", HASHES)
def test_what_lies_behind_a_forgotten_block_waits_for_it(hashing):
    """Its content is right, but nobody can begin with a hole. Whoever computes the hole anew reaches it again."""
    index = index_with(([1, 2, 3, 4, 5, 6], [0, 1, 2]), hashing=hashing)
    index.forget(0)
    index.check_integrity()
    assert index.match([1, 2, 3, 4, 5, 6], None, 3) == []
    index.assign(index.insert(None, (1, 2), None), 9)
    assert index.match([1, 2, 3, 4, 5, 6], None, 3) == [9, 1, 2]
    index.check_integrity()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_nothing_stays_when_all_is_forgotten(order):
    index = index_with(([1, 2, 3, 4, 5, 6], [0, 1, 2]), hashing=collide)
    for block in order:
        assert index.forget(block)
        index.check_integrity()
    assert index._entries == {}
    assert index._by_block == {}


def test_forgetting_one_branch_leaves_the_other():
    index = index_with(([1, 2, 3, 4], [0, 1]), ([1, 2, 5, 6], [0, 2]))
    index.forget(1)
    index.forget(0)
    index.check_integrity()
    assert index.entry_of(2) is not None
    index.forget(2)
    assert index._entries == {}


def test_an_entry_knows_its_place():
    index = index_with(([1, 2, 3, 4], [0, 1]), salt="x")
    entry = index.entry_of(1)
    assert (entry.tokens, entry.salt, entry.block, entry.num_children) == ((3, 4), "x", 1, 0)
    assert entry.parent is index.entry_of(0)
    assert entry.parent.parent is None
    assert index.find(entry.parent, (3, 4), "x") is entry
    assert index.insert(entry.parent, (3, 4), "x") is entry
    assert index.entry_of(5) is None


def test_the_hash_sees_parent_tokens_and_salt():
    """The default tells all of them apart; a given one is called once a block, with the parent's own hash."""
    hashes = {
        hash_block(parent, tokens, salt)
        for parent in (None, 0, 1)
        for tokens in ((1, 2), (2, 1), (1,))
        for salt in (None, "", "a")
    }
    assert len(hashes) == 27
    calls = []

    def count(parent_hash, tokens, salt):
        calls.append((parent_hash, tokens, salt))
        return f"h{len(calls)}"

    index = PrefixIndex(2, count)
    index.insert(index.insert(None, (1, 2), "s"), (3, 4), "s")
    assert calls == [(None, (1, 2), "s"), ("h1", (3, 4), "s")]


def test_a_block_holds_one_entry_and_an_entry_one_block():
    index = index_with(([1, 2], [0]))
    with pytest.raises(AssertionError):
        index.assign(index.entry_of(0), 1)
    with pytest.raises(AssertionError):
        index.assign(index.insert(None, (3, 4), None), 0)


def break_block(index):
    index.entry_of(0).block = 5


def break_map(index):
    index._by_block[5] = index.entry_of(1)


def break_twice(index):
    index.insert(None, (7, 8), None).block = 0


def break_twice_and_forget(index):
    index.entry_of(0).block = 1
    del index._by_block[0]


def break_count(index):
    index.entry_of(0).num_children += 1


def break_tokens(index):
    index.entry_of(1).tokens = (9, 9)


def break_length(index):
    entry = index.insert(None, (7, 8, 9), None)
    index.assign(entry, 4)


def break_parent(index):
    orphan = index.entry_of(1)
    del index._entries[orphan.parent.hash]
    del index._by_block[0]


def leave_empty(index):
    index.insert(None, (7, 8), None)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (break_block, r"blocks and entries differ: \[1, 5\] and \[0, 1\]"),
        (break_map, r"blocks and entries differ: \[0, 1\] and \[0, 1, 5\]"),
        (break_twice, "blocks and entries differ"),
        (break_twice_and_forget, r"blocks and entries differ: \[1\] and \[1\]"),
        (break_count, "the entry of block 0 counts 2 children, wrongly"),
        (break_tokens, r"the entry of block 1 is not found under its tokens \(9, 9\)"),
        (break_length, r"the entry of block 4 is not found under its tokens \(7, 8, 9\)"),
        (break_parent, "1 parents are no entries themselves"),
        (leave_empty, r"an entry without block and children stayed: \(7, 8\)"),
    ],
)
def test_check_integrity_names_what_is_broken(fault, message):
    index = index_with(([1, 2, 3, 4], [0, 1]))
    fault(index)
    with pytest.raises(RuntimeError, match=message):
        index.check_integrity()
