"""Task 1: a block manager, driven operation by operation and looked at after each."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _

Operation = tuple[Any, ...]
View = dict[str, Any]


def own_operations(seed: int) -> list[Operation]:
    """Operations on a pool of 7 blocks of 4 slots: the course's requests A (7 tokens) and B (2), and drawn ones."""
    rng = draw(seed, "lab02.operations")
    grown = [("append", rng.choice("AB")) for _ in range(rng.randint(2, 4))]
    last = [("allocate", "C", rng.randint(17, 20)), ("free", "A"), ("allocate", "C", 12), ("append", "C")]
    return [("allocate", "A", 7), ("allocate", "B", 2), *grown, *last]


def drive(answer: Any, arguments: tuple[Any, ...]) -> list[View]:
    """Do the operations on a new manager and return what it looks like after each."""
    num_blocks, block_size, operations = arguments
    manager = answer(num_blocks, block_size)
    known: dict[str, list[int]] = {}
    views = []
    for operation in operations:
        name, request, *rest = operation
        # A request that was refused before cannot grow; what went wrong then is in the views.
        is_unknown = name == "append" and request not in known
        did = None if is_unknown else getattr(manager, name)(request, *rest)
        if name == "free":
            known.pop(request, None)
        elif did is True:
            known.setdefault(request, [])
        tables = {one: list(manager.block_table(one)) for one in known}
        views.append(_view(did, tables, known, manager.num_free, num_blocks))
        known = tables
    return views


def _view(did: Any, tables: dict[str, list[int]], before: dict[str, list[int]], num_free: Any, total: int) -> View:
    counts = {request: len(table) for request, table in tables.items()}
    return {"did": did, "blocks": counts, "num_free": num_free, "fault": _fault(tables, before, num_free, total)}


def _fault(tables: dict[str, list[int]], before: dict[str, list[int]], num_free: Any, total: int) -> str:
    """What is broken, whatever the counts: "" if nothing is."""
    owned = [block for table in tables.values() for block in table]
    if any(type(block) is not int or not 0 <= block < total for block in owned):
        return "no such block"
    if len(set(owned)) < len(owned):
        return "two owners"
    if any(table[: len(before.get(request, []))] != before.get(request, []) for request, table in tables.items()):
        return "moved"
    return "" if type(num_free) is int and num_free + len(owned) == total else "lost"


def _expected(num_blocks: int, block_size: int, operations: Sequence[Operation]) -> list[View]:
    """The views of a manager that does everything right; it counts and needs no block numbers."""
    tokens: dict[str, int] = {}
    views: list[View] = []
    for name, request, *rest in operations:
        others = sum(-(-count // block_size) for one, count in tokens.items() if one != request)
        wanted = rest[0] if name == "allocate" else tokens.get(request, 0) + 1
        did: bool | None = None
        if name == "free":
            tokens.pop(request, None)
        else:
            did = others + -(-wanted // block_size) <= num_blocks
            if did:
                tokens[request] = wanted
        counts = {one: -(-count // block_size) for one, count in tokens.items()}
        views.append({"did": did, "blocks": counts, "num_free": num_blocks - sum(counts.values()), "fault": ""})
    return views


def _case(num_blocks: int, block_size: int, operations: list[Operation]) -> Case:
    words = ", ".join(f"{name} {' '.join(map(str, rest))}" for name, *rest in operations)
    call = _("{num_blocks} blocks of {block_size}: {operations}").format(
        num_blocks=num_blocks, block_size=block_size, operations=words if len(words) < 300 else words[:296] + " ..."
    )
    return Case((num_blocks, block_size, operations), _expected(num_blocks, block_size, operations), call)


def _visible(seed: int) -> list[Case]:
    boundary = [("allocate", "A", 8), ("append", "A"), ("free", "A"), ("free", "A")]
    return [_case(7, 4, [("allocate", "A", 7), ("append", "A"), ("append", "A")]), _case(7, 4, boundary),
            _case(7, 4, own_operations(seed))]  # fmt: skip


def _hidden(seed: int) -> list[Case]:
    rng = draw(seed, "lab02.block-manager")
    return [_case(*_draw(rng, block_size)) for block_size in (1, 2, 4, rng.choice([3, 8]), 16)]


def _draw(rng: random.Random, block_size: int) -> tuple[int, int, list[Operation]]:
    """Forty operations on a crowded pool; every third length is a multiple of the block size."""
    num_blocks, live = rng.randint(5, 9), set[str]()
    operations: list[Operation] = []
    for number in range(40):
        request = rng.choice("ABCDE")
        if number == 9:
            operations.append(("free", "stranger"))
        if request not in live:
            length = block_size * rng.randint(1, 3) if number % 3 == 0 else rng.randint(1, 3 * block_size)
            operations.append(("allocate", request, length))
        else:
            operations.append(("free", request) if rng.random() < 0.3 else ("append", request))
        live = set(_expected(num_blocks, block_size, operations)[-1]["blocks"])
    return num_blocks, block_size, operations


def _first(predicate: Callable[[View, View, View], bool]) -> Callable[[Case, Any], bool]:
    """Whether `predicate(what came, what is right, what was right before)` holds at the first wrong view."""

    def matches(case: Case, got: Any) -> bool:
        before: View = {"did": None, "blocks": {}, "num_free": case.arguments[0], "fault": ""}
        for come, right in zip(got, case.expected, strict=True):
            if come != right:
                return predicate(come, right, before)
            before = right
        return False

    return matches


def _has_fault(name: str) -> Callable[[Case, Any], bool]:
    return _first(lambda come, right, before: come["fault"] == name)


def _more(come: View, right: View) -> int:
    return int(sum(come["blocks"].values()) - sum(right["blocks"].values()))


BLOCK_MANAGER = Task(
    id="lab02.block-manager",
    title=_("Task 1: a block manager"),
    kind="fill",
    points=6,
    minutes=30,
    difficulty="hard",
    call="BlockManager(num_blocks, block_size)",
    answer="class",
    run=drive,
    visible=_visible,
    hidden=_hidden,
    mistakes=(
        Mistake("two owners", _has_fault("two owners"), _("A block has two owners: one of them overwrites the other.")),
        Mistake("no such block", _has_fault("no such block"), _("A table names a block that the pool does not have.")),
        Mistake("moved", _has_fault("moved"), _("The blocks of a running request changed. Its K and V did not move.")),
        Mistake(
            "half refused",
            _first(lambda come, right, before: right["did"] is False and come["did"] is False),
            _("You refuse, and something changed all the same. A refusal leaves the manager as it was."),
        ),
        Mistake(
            "never refuses",
            _first(lambda come, right, before: right["did"] is False and come["did"] is not False),
            _("There are too few free blocks, and you do not return False."),
        ),
        Mistake(
            "refuses too soon",
            _first(lambda come, right, before: right["did"] is True and come["did"] is False),
            _("You refuse although the blocks suffice. How many new blocks does this operation really need?"),
        ),
        Mistake(
            "says nothing",
            _first(lambda come, right, before: right["did"] is True and come["did"] is not True),
            _("allocate and append return True when they did it."),
        ),
        Mistake("lost", _has_fault("lost"), _("Free and owned blocks together are not the whole pool.")),
        Mistake(
            "one too many",
            _first(lambda come, right, before: _more(come, right) > 0),
            _("You hand out a block that nobody needs yet. Look at lengths that fill their last block exactly."),
        ),
        Mistake(
            "one too few",
            _first(lambda come, right, before: _more(come, right) < 0),
            _("A token has no slot. Look at the token that comes after a full block."),
        ),
    ),
    hints=(
        _("A request of 8 tokens has 2 blocks of 4. Which operation takes its third block?"),
        _("After every operation: free + owned = num_blocks, and blocks of a request = its tokens / size, rounded up."),
        _("append: when the tokens fill the blocks exactly, take a free block (none? return False); count the token"),
    ),
    seconds=5,
)
