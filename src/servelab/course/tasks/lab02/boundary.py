"""Tasks 2 and 3: a fault at lengths that are multiples of the block size, found and repaired."""

from typing import Any

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _


def _evidence_is_right(case: Case, got: Any) -> bool:
    (block_size,) = case.arguments
    if type(got) is not list or len(got) != 3 or any(type(one) is not int for one in got):
        return False
    num_tokens, reported, right = got
    return bool(num_tokens > 0 and num_tokens % block_size == 0 and reported == 0 and right == block_size)


EVIDENCE = Task(
    id="lab02.evidence",
    title=_("Task 2: find the fault"),
    kind="debug",
    points=2,
    minutes=8,
    difficulty="easy",
    call="evidence(block_size)",
    visible=lambda seed: [Case((4,), None), Case((16,), None)],
    hidden=lambda seed: [Case((size,), None) for size in (1, draw(seed, "lab02.evidence").randint(5, 40))],
    compare=_evidence_is_right,
    mistakes=(
        Mistake(
            "form",
            lambda case, got: type(got) is not list or len(got) != 3 or any(type(one) is not int for one in got),
            _("Return three whole numbers: the length, what the code says, and what is right."),
        ),
        Mistake("empty", lambda case, got: got[0] < 1, _("A request without tokens has no last block.")),
        Mistake(
            "no fault there",
            lambda case, got: got[0] % case.arguments[0] != 0,
            _("At this length the code is right. Try the lengths from 1 on, one by one."),
        ),
        Mistake(
            "says another thing",
            lambda case, got: got[0] % case.arguments[0] == 0 and got[1] != 0,
            _("The length shows the fault, but the code says something else there. Run it."),
        ),
        Mistake(
            "right value",
            lambda case, got: got[1] == 0 and got[2] != case.arguments[0],
            _("The length shows the fault. Count the tokens of the last block again: draw it."),
        ),
    ),
    hints=(
        _("What does the last block look like when the tokens end exactly where it ends?"),
        _("A last block is never empty: it holds from 1 to block_size tokens."),
        _("for num_tokens = 1, 2, 3, ...: count by hand, call the code, stop where they differ"),
    ),
    seconds=3,
)


def _last_block(block_table: list[int], token_ids: list[int], block_size: int) -> list[Any]:
    index, offset = divmod(len(token_ids) - 1, block_size)
    return [block_table[index] * block_size + offset, token_ids[index * block_size :]]


def _reported(block_table: list[int], token_ids: list[int], block_size: int) -> list[Any]:
    count = len(token_ids) % block_size
    return [block_table[-1] * block_size + count - 1, token_ids[-count:]]


def _case(block_table: list[int], num_tokens: int, block_size: int) -> Case:
    arguments = (block_table, list(range(101, 101 + num_tokens)), block_size)
    call = _("last_block({table}, {num_tokens} tokens, block_size={size})").format(
        table=block_table, num_tokens=num_tokens, size=block_size
    )
    return Case(arguments, _last_block(*arguments), call)


def _hidden(seed: int) -> list[Case]:
    rng = draw(seed, "lab02.last-block")
    cases = []
    for block_size, num_tokens in ((1, 1), (1, 3), (16, 16), (16, 17), (16, 64), (8, rng.randint(2, 7)), (4, 24)):
        cases.append(_case(rng.sample(range(200), -(-num_tokens // block_size)), num_tokens, block_size))
    return cases


LAST_BLOCK = Task(
    id="lab02.last-block",
    title=_("Task 3: repair the fault"),
    kind="debug",
    points=3,
    minutes=12,
    difficulty="medium",
    call="last_block(block_table, token_ids, block_size)",
    visible=lambda seed: [_case([10, 11], 7, 4), _case([10, 11], 8, 4)],
    hidden=_hidden,
    mistakes=(
        Mistake(
            "as reported",
            lambda case, got: got == _reported(*case.arguments),
            _("The fault is still in: the slot lies in front of the last block, and the block holds every token."),
        ),
        Mistake(
            "every token",
            lambda case, got: got[0] == case.expected[0] and got[1] == case.arguments[1],
            _("The slot is right. The tokens of the last block are still all tokens: what is [-0:] in Python?"),
        ),
        Mistake(
            "no token",
            lambda case, got: got[0] == case.expected[0] and got[1] == [],
            _("The slot is right, and you say that a full block holds no token."),
        ),
        Mistake(
            "always full",
            lambda case, got: got[0] == case.arguments[0][-1] * case.arguments[2] + case.arguments[2] - 1,
            _("You take every last block for a full one. Look at a length that does not fill it."),
        ),
        Mistake(
            "one slot on",
            lambda case, got: got[0] == case.expected[0] + 1,
            _("Your slot is the one after the last token: slots of a block start at 0."),
        ),
        Mistake(
            "logical block",
            lambda case, got: got[0] == len(case.arguments[1]) - 1,
            _("You count slots as if the blocks lay side by side. What is block_table for?"),
        ),
    ),
    hints=(
        _("Which block, and which place in it, has token number n - 1 (the first is number 0)?"),
        _("The last token's slot lies inside block_table[-1], always; its block holds 1 to block_size tokens."),
        _("divide num_tokens - 1 by block_size: quotient = entry of the table, remainder = place in the block"),
    ),
    seconds=3,
)
