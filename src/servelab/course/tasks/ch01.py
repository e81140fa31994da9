"""Self-tests of chapter 01: rows with and without a cache, KV bytes of a request, and the largest hole of a pool."""

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _


def _rows(num_prompt_tokens: int, num_output_tokens: int, cached: bool) -> int:
    if cached:
        return num_prompt_tokens + num_output_tokens - 1
    return sum(range(num_prompt_tokens, num_prompt_tokens + num_output_tokens))


def _rows_visible(seed: int) -> list[Case]:
    shown = ((7, 5, False), (7, 5, True), (2, 3, False), (2, 3, True))
    return [Case(arguments, _rows(*arguments)) for arguments in shown]


def _rows_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "01.rows")
    drawn = [(rng.randint(3, 900), rng.randint(3, 200)) for _each in range(4)]
    arguments = [(*lengths, cached) for lengths in [*drawn, (rng.randint(3, 900), 1)] for cached in (False, True)]
    return [Case(each, _rows(*each)) for each in arguments]


ROWS = Task(
    id="01.rows",
    title=_("Rows through the network"),
    kind="fill",
    points=2,
    minutes=5,
    difficulty="easy",
    call="rows_computed(num_prompt_tokens, num_output_tokens, cached)",
    visible=_rows_visible,
    hidden=_rows_hidden,
    mistakes=(
        Mistake(
            "ignores the cache",
            lambda case, got: (
                case.arguments[1] > 1 and got == _rows(case.arguments[0], case.arguments[1], not case.arguments[2])
            ),
            _("This is the count of the other way of working. Does your function look at `cached`?"),
        ),
        Mistake(
            "counts the last token",
            lambda case, got: got == case.expected + (1 if case.arguments[2] else sum(case.arguments[:2])),
            _("You let the last output token pass the network as well. Which output token would need it?"),
        ),
        Mistake(
            "one row too many a step",
            lambda case, got: not case.arguments[2] and got == case.expected + case.arguments[1],
            _("Each step of yours is one row too long. Which tokens stand before the token that you look for?"),
        ),
        Mistake(
            "the prompt again and again",
            lambda case, got: got == case.arguments[0] * case.arguments[1],
            _("You multiply the prompt by the output tokens. From the second step on, is the text still the prompt?"),
        ),
        Mistake(
            "the prompt left out",
            lambda case, got: case.arguments[2] and got in (case.arguments[1], case.arguments[1] - 1),
            _("You count output tokens only. Where do K and V of the prompt tokens come from?"),
        ),
        Mistake(
            "every step at full length",
            lambda case, got: got == sum(case.arguments[:2]) * case.arguments[1],
            _("Every step of yours has the final length. How long is the text in the first step?"),
        ),
    ),
    hints=(
        _("7 prompt tokens, 2 output tokens: which rows pass in step 1, which in step 2? Cached, and not cached?"),
        _("With one output token, both ways of working compute the same rows: the prompt."),
        _(
            "not cached: for each output token, add the tokens that stand before it; "
            "cached: the prompt once, and one row for each output token that has another one after it"
        ),
    ),
)


def _kv_bytes(layers: int, kv_heads: int, head_dim: int, size: int, prompt: int, output: int) -> int:
    return layers * 2 * kv_heads * head_dim * size * (prompt + output - 1)


def _kv_visible(seed: int) -> list[Case]:
    shown = ((30, 3, 64, 2, 7, 5), (30, 3, 64, 4, 7, 5))
    return [Case(arguments, _kv_bytes(*arguments)) for arguments in shown]


def _kv_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "01.kv-bytes")
    cases = []
    for size in (1, 2, 4, 2):
        shape = (rng.choice([22, 28, 36, 48, 80]), rng.choice([2, 4, 5, 8]), rng.choice([64, 80, 96, 128]), size)
        arguments = (*shape, rng.randint(11, 900), rng.randint(11, 400))
        cases.append(Case(arguments, _kv_bytes(*arguments)))
    return cases


def _tokens(case: Case) -> int:
    return int(case.arguments[4] + case.arguments[5] - 1)


def _is_part(case: Case, got: float, numerator: float, denominator: float) -> bool:
    """Whether `got` is the expected value times ``numerator / denominator``, without rounding."""
    return bool(got * denominator == case.expected * numerator)


KV_BYTES = Task(
    id="01.kv-bytes",
    title=_("KV bytes of a request"),
    kind="fill",
    points=2,
    minutes=5,
    difficulty="easy",
    call="kv_bytes(num_layers, num_kv_heads, head_dim, bytes_per_element, num_prompt_tokens, num_output_tokens)",
    visible=_kv_visible,
    hidden=_kv_hidden,
    mistakes=(
        Mistake(
            "one of K and V",
            lambda case, got: _is_part(case, got, 1, 2),
            _("Half of it is missing. A later token compares with the keys: and what does it then add up?"),
        ),
        Mistake(
            "one layer",
            lambda case, got: _is_part(case, got, 1, case.arguments[0]),
            _("You count one layer. Each layer has keys and values of its own."),
        ),
        Mistake(
            "numbers, not bytes",
            lambda case, got: case.arguments[3] > 1 and _is_part(case, got, 1, case.arguments[3]),
            _("You count numbers. How many bytes does each of them take?"),
        ),
        Mistake(
            "one head",
            lambda case, got: _is_part(case, got, 1, case.arguments[1]),
            _("You count one KV head. They all keep their own."),
        ),
        Mistake(
            "the last token",
            lambda case, got: _is_part(case, got, _tokens(case) + 1, _tokens(case)),
            _("You store one token too many. Which token never passes the network?"),
        ),
        Mistake(
            "prompt only",
            lambda case, got: _is_part(case, got, case.arguments[4], _tokens(case)),
            _("This is the prompt's part. Later output tokens look at earlier output tokens too."),
        ),
        Mistake(
            "one token",
            lambda case, got: _is_part(case, got, 1, _tokens(case)),
            _("These are the bytes of one token. How many tokens does the request store?"),
        ),
    ),
    hints=(
        _("Which vectors of an old token does the next token read, in how many layers?"),
        _("One more output token makes the result larger by the bytes of one token, whatever the lengths are."),
        _("bytes of a token: layers x (K and V) x KV heads x head dim x bytes; times the tokens that passed"),
    ),
)


def _holes(num_slots: int, taken: list[tuple[int, int]]) -> list[int]:
    """The lengths of all holes from left to right, those of length 0 too: one before each range and one at the end."""
    lengths, position = [], 0
    for start, length in sorted(taken):
        lengths.append(start - position)
        position = start + length
    return [*lengths, num_slots - position]


def _hole_case(num_slots: int, taken: list[tuple[int, int]]) -> Case:
    return Case((num_slots, taken), max(_holes(num_slots, taken)))


def _hole_visible(seed: int) -> list[Case]:
    return [_hole_case(28, [(7, 2), (16, 7)]), _hole_case(12, [(0, 5)]), _hole_case(10, [(6, 4)])]


def _hole_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "01.hole")
    cases = []
    for large in range(4):  # the largest hole is the first one, in the middle twice, the last one
        taken, position = [], 0
        for number in range(3):
            position += rng.randint(1, 6) + (12 if number == large else 0)
            length = rng.randint(1, 9)
            taken.append((position, length))
            position += length
        rng.shuffle(taken)
        cases.append(_hole_case(position + rng.randint(1, 6) + (12 if large == 3 else 0), taken))
    return [*cases, _hole_case(16, []), _hole_case(9, [(4, 5), (0, 4)])]


HOLE = Task(
    id="01.hole",
    title=_("The largest hole"),
    kind="fill",
    points=2,
    minutes=8,
    difficulty="medium",
    call="largest_hole(num_slots, taken)",
    visible=_hole_visible,
    hidden=_hole_hidden,
    mistakes=(
        Mistake(
            "all free slots",
            lambda case, got: got == sum(_holes(*case.arguments)),
            _("You add all free slots. A request needs its slots in a row."),
        ),
        Mistake(
            "not the end",
            lambda case, got: got == max(_holes(*case.arguments)[:-1], default=0),
            _("You stop at the last range. What lies behind it, up to the end of the pool?"),
        ),
        Mistake(
            "not the beginning",
            lambda case, got: got == max(_holes(*case.arguments)[1:], default=0),
            _("You begin at the first range. What lies in front of it?"),
        ),
        Mistake(
            "between ranges only",
            lambda case, got: got == max(_holes(*case.arguments)[1:-1], default=0),
            _("You look between the ranges only. A pool has two ends as well."),
        ),
        Mistake(
            "needs order",
            lambda case, got: got == _unsorted(*case.arguments),
            _("You trust the order of `taken`. Requests come and go, so the ranges stand there in any order."),
        ),
        Mistake(
            "the largest range",
            lambda case, got: got == max((length for _start, length in case.arguments[1]), default=0),
            _("This is the largest range that a request owns. You are looking for what is free."),
        ),
    ),
    hints=(
        _("A pool of 12 slots, slots 4 to 6 are taken. Which holes are there, and how long are they?"),
        _("All holes and all ranges together are exactly the pool."),
        _(
            "go through the ranges from left to right; keep the first slot behind the last range; the gap in front of "
            "each range is a hole, and so is what is left at the end"
        ),
    ),
)


def _unsorted(num_slots: int, taken: list[tuple[int, int]]) -> int:
    """What a walk over the ranges in their given order finds."""
    largest = position = 0
    for start, length in taken:
        largest, position = max(largest, start - position), start + length
    return max(largest, num_slots - position)


TASKS = (ROWS, KV_BYTES, HOLE)
