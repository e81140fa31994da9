"""Self-tests of chapter 02: where a token lies, how many blocks a request takes, what its last block wastes, and which
blocks it takes over from the requests before it."""

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _


def _slot(block_table: list[int], position: int, block_size: int) -> int:
    return block_table[position // block_size] * block_size + position % block_size


def _slot_cases(seed: int) -> list[Case]:
    shown = (([0, 1, 3], 6, 4), ([0, 1, 3], 8, 4), ([2, 4], 5, 4))
    return [Case(arguments, _slot(*arguments)) for arguments in shown]


def _slot_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "02.slot")
    cases = []
    for block_size in (1, 4, 8, 16):
        table = rng.sample(range(40), 6)
        for position in (block_size * rng.randint(1, 5), rng.randrange(6 * block_size), 6 * block_size - 1):
            cases.append(Case((table, position, block_size), _slot(table, position, block_size)))
    return cases


def _table_entry(case: Case, index: int) -> int:
    entry: int = case.arguments[0][index]
    return entry


def _in_a_row(case: Case) -> int:
    """Where the token would lie if the request's blocks followed its first one."""
    table, position, block_size = case.arguments
    return int(table[0] * block_size + position)


SLOT = Task(
    id="02.slot",
    title=_("The slot of a token"),
    kind="fill",
    points=2,
    minutes=5,
    difficulty="easy",
    call="slot_of(block_table, position, block_size)",
    visible=_slot_cases,
    hidden=_slot_hidden,
    mistakes=(
        Mistake(
            "no table",
            lambda case, got: got == case.arguments[1] or got == _in_a_row(case),
            _("This is right only where all blocks of the request lie in a row. Who says where they really are?"),
        ),
        Mistake(
            "block, not slot",
            lambda case, got: got == _table_entry(case, case.arguments[1] // case.arguments[2]),
            _("This is the number of the right block. A block has several slots, and all of them have numbers."),
        ),
        Mistake(
            "no offset",
            lambda case, got: (
                case.arguments[1] % case.arguments[2] != 0
                and got == _table_entry(case, case.arguments[1] // case.arguments[2]) * case.arguments[2]
            ),
            _("This is the first slot of the right block. Which token of its block is this one?"),
        ),
        Mistake(
            "block plus offset",
            lambda case, got: (
                got
                == _table_entry(case, case.arguments[1] // case.arguments[2]) + case.arguments[1] % case.arguments[2]
            ),
            _("The offset is right. How many slots of the pool lie before a physical block?"),
        ),
        Mistake(
            "counts from one",
            lambda case, got: (
                got == _slot(case.arguments[0], max(0, case.arguments[1] - 1), case.arguments[2])
                or got == _slot(*case.arguments) + 1
            ),
            _("You are one slot off. The first token has position 0, the first slot number 0."),
        ),
    ),
    hints=(
        _("Block size 4, position 6. In which logical block of the request is it, and which token of that block?"),
        _("Two positions in one logical block always have slots in one physical block, as far apart as they are."),
        _(
            "index, offset = position divided by the block size, with remainder; look index up in the table; "
            "skip the slots of all physical blocks before that one; go on by offset"
        ),
    ),
)


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _blocks_cases(seed: int) -> list[Case]:
    return [Case(arguments, _blocks(*arguments)) for arguments in ((7, 4), (2, 4), (8, 4), (300, 16))]


def _blocks_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "02.blocks")
    cases = [Case((rng.randint(1, 2048), size), 0) for size in (1, 4, 16, 32, 64, 256)]
    cases += [Case((size * rng.randint(2, 9), size), 0) for size in (8, 16, 128)]
    return [Case(case.arguments, _blocks(*case.arguments)) for case in cases]


BLOCKS = Task(
    id="02.blocks",
    title=_("Blocks for a request"),
    kind="fill",
    points=1,
    minutes=3,
    difficulty="easy",
    call="blocks_for(num_tokens, block_size)",
    visible=_blocks_cases,
    hidden=_blocks_hidden,
    mistakes=(
        Mistake(
            "rounds down",
            lambda case, got: got == case.arguments[0] // case.arguments[1],
            _("The tokens that are left over, too few for a whole block, need a place as well."),
        ),
        Mistake(
            "one too many",
            lambda case, got: got == case.arguments[0] // case.arguments[1] + 1,
            _("Try a length that fills its last block to the end. Is the block after it needed yet?"),
        ),
        Mistake(
            "a fraction",
            lambda case, got: type(got) is float and got == case.arguments[0] / case.arguments[1],
            _("A pool hands out whole blocks only. Which way do you have to round?"),
        ),
        Mistake(
            "slots",
            lambda case, got: got == _blocks(*case.arguments) * case.arguments[1],
            _("You count slots. The question is how many blocks they are."),
        ),
    ),
    hints=(
        _("How many blocks of 4 do 8 tokens take? And 9?"),
        _("blocks x block size is never less than the tokens, and less than one block more than them."),
        _("divide, forget the remainder; if there was a remainder, add one"),
    ),
)


def _waste(lengths: list[int], block_size: int) -> int:
    return sum(_blocks(length, block_size) * block_size - length for length in lengths)


def _waste_cases(seed: int) -> list[Case]:
    shown = (([7], 4), ([7, 2, 7], 4), ([8, 4], 4), ([300, 17], 16))
    return [Case(arguments, _waste(*arguments)) for arguments in shown]


def _waste_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "02.waste")
    cases: list[Case] = []
    for block_size in (1, 8, 16, 64):
        lengths = [rng.randint(1, 400) for _ in range(5)] + [block_size * rng.randint(1, 4)]
        cases.append(Case((lengths, block_size), _waste(lengths, block_size)))
    return [*cases, Case(([], 16), 0)]


WASTE = Task(
    id="02.waste",
    title=_("Internal waste"),
    kind="fill",
    points=2,
    minutes=5,
    difficulty="medium",
    call="internal_waste(lengths, block_size)",
    visible=_waste_cases,
    hidden=_waste_hidden,
    mistakes=(
        Mistake(
            "a whole block at the boundary",
            lambda case, got: (
                got == sum(case.arguments[1] - length % case.arguments[1] for length in case.arguments[0])
            ),
            _("A request that fills its last block exactly wastes nothing in it. What do you count for it?"),
        ),
        Mistake(
            "one padding for all",
            lambda case, got: got == -sum(case.arguments[0]) % case.arguments[1],
            _("You round the sum up, as if the requests lay behind one another. Does a request share its last block?"),
        ),
        Mistake(
            "used instead of empty",
            lambda case, got: got == sum(length % case.arguments[1] for length in case.arguments[0]),
            _("You count the slots of the last blocks that hold a token. Which ones are wasted?"),
        ),
        Mistake(
            "all slots",
            lambda case, got: (
                got == sum(_blocks(length, case.arguments[1]) for length in case.arguments[0]) * case.arguments[1]
            ),
            _("You count every slot that the requests own. Some of them hold tokens."),
        ),
        Mistake(
            "the bound",
            lambda case, got: got == len(case.arguments[0]) * (case.arguments[1] - 1),
            _("This is the most that so many requests could waste. How much do these ones?"),
        ),
        Mistake(
            "a share",
            lambda case, got: type(got) is float and 0 < got < 1,
            _("Return slots, not a share of the memory."),
        ),
    ),
    hints=(
        _("Three requests of 7, 2 and 7 tokens, blocks of 4: how many slots stay empty in the last block of each?"),
        _("Each request wastes at least 0 slots and less than one block, whatever the others do."),
        _("for each length: the slots of its blocks, less its tokens; add these up"),
    ),
)

Cached = dict[int, tuple[list[int], int]]


def _match(prompt: list[int], cached: Cached, block_size: int) -> list[int]:
    return _taken(prompt, cached, range(block_size, len(prompt), block_size))


def _taken(prompt: list[int], cached: Cached, ends: range) -> list[int]:
    """The blocks of the prefixes that end at `ends`, up to the first that is not there."""
    blocks = []
    for end in ends:
        prefix, block = cached.get(sum(prompt[:end]), ([], -1))
        if prefix != prompt[:end]:
            break
        blocks.append(block)
    return blocks


def _kept(tokens: list[int], blocks: list[int], block_size: int) -> Cached:
    """What the cache holds of a request: an entry for each full block."""
    ends = range(block_size, len(tokens) + 1, block_size)
    return {sum(tokens[:end]): (tokens[:end], block) for end, block in zip(ends, blocks, strict=False)}


def _match_cases(seed: int) -> list[Case]:
    cached = _kept([5, 1, 4, 2, 3, 3, 3, 3], [2, 0], 4)
    prompts = ([5, 1, 4, 2, 9, 9, 9], [5, 1, 4, 2, 3, 3, 3, 3, 8], [5, 1, 4, 2], [2, 4, 1, 5, 9])
    cases = [Case((prompt, cached, 4), _match(prompt, cached, 4)) for prompt in prompts]
    gap = {key: value for key, value in cached.items() if len(value[0]) == 8}
    return [*cases, Case((prompts[1], gap, 4), [])]


def _match_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "02.match")
    cases = []
    for block_size in (2, 4, 8):
        tokens = [rng.randint(1, 40) for _ in range(4 * block_size)]
        cached = _kept(tokens, rng.sample(range(10, 40), 4), block_size)
        swapped = [*tokens[:block_size], tokens[block_size] + 1, tokens[block_size + 1] - 1, *tokens[block_size + 2 :]]
        third = {key: value for key, value in cached.items() if len(value[0]) != 3 * block_size}
        for prompt, entries in (
            ([*tokens, 41], cached),
            (tokens, cached),
            (tokens[: 2 * block_size], cached),
            ([*tokens[: 3 * block_size - 1], 41, 41], cached),
            ([*swapped, 41], cached),
            ([*tokens, 41], third),
            ([41, *tokens], cached),
        ):
            cases.append(Case((prompt, entries, block_size), _match(prompt, entries, block_size)))
    return cases


def _whole_prompt(case: Case) -> list[int]:
    prompt, cached, size = case.arguments
    return _taken(prompt, cached, range(size, len(prompt) + 1, size))


def _trusting(case: Case) -> list[int]:
    """What comes out when nobody compares tokens."""
    prompt, cached, size = case.arguments
    blocks = []
    for end in range(size, len(prompt), size):
        if sum(prompt[:end]) not in cached:
            break
        blocks.append(cached[sum(prompt[:end])][1])
    return blocks


def _with_gaps(case: Case) -> list[int]:
    prompt, cached, size = case.arguments
    ends = range(size, len(prompt), size)
    return [block for end in ends for block in _taken(prompt, cached, range(end, end + 1))]


MATCH = Task(
    id="02.match",
    title=_("Blocks to take over"),
    kind="fill",
    points=3,
    minutes=8,
    difficulty="medium",
    call="match_prefix(prompt, cached, block_size)",
    visible=_match_cases,
    hidden=_match_hidden,
    mistakes=(
        Mistake(
            "the whole prompt",
            lambda case, got: got == _whole_prompt(case),
            _("Here no token of the prompt is left to compute. Where do the first output token's logits come from?"),
        ),
        Mistake(
            "trusts the hash",
            lambda case, got: got == _trusting(case),
            _("Two different prefixes can have the same sum. What else does an entry hold that you can compare?"),
        ),
        Mistake(
            "goes on after a gap",
            lambda case, got: got == _with_gaps(case),
            _("A block is missing, and you take a later one. Which entry of the new block table would it become?"),
        ),
        Mistake(
            "the first block only",
            lambda case, got: got == _match(*case.arguments)[:1],
            _("You stop after one block. The key of a later block is the sum of all tokens up to its end."),
        ),
        Mistake(
            "logical blocks",
            lambda case, got: got == list(range(len(_match(*case.arguments)))),
            _("So many blocks, yes. But these are numbers of logical blocks: which physical ones are they?"),
        ),
        Mistake(
            "a count",
            lambda case, got: (
                type(got) is int
                and got in (len(_match(*case.arguments)), case.arguments[2] * len(_match(*case.arguments)))
            ),
            _("You count. Return the blocks themselves, in the order of the table."),
        ),
    ),
    hints=(
        _(
            "A prompt of 8 tokens, blocks of 4, both blocks are cached. How many may you take, if one token must be "
            "left to compute?"
        ),
        _("What you return are the first entries of the new block table: entry i stands for the tokens of block i."),
        _(
            "for each end of a full block before the end of the prompt, from the front: look up the sum of the tokens "
            "up to there; stop if there is no entry, or if its tokens are others; else take its block"
        ),
    ),
)

TASKS = (SLOT, BLOCKS, WASTE, MATCH)
