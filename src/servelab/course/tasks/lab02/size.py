"""Task 4: a block size under two budgets. Several choices hold; the judge recomputes each."""

from typing import Any

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _

SIZES = tuple(2**power for power in range(9))


def draw_pool(seed: int) -> dict[str, Any]:
    """A pool, its block tables' memory, and the final lengths of the requests that run together."""
    return _draw(seed, "lab02.pool")


def _draw(seed: int, name: str) -> dict[str, Any]:
    """The block size that is as small as the tables allow lies between 4 and 32, and a few larger ones fit too."""
    rng = draw(seed, name)
    while True:
        kv_bytes, lengths = 2 * 2 * 64 * rng.choice([48, 90, 96, 120]), [rng.randint(40, 900) for _ in range(12)]
        wanted, entry_bytes = rng.choice([4, 8, 16, 32]), rng.choice([4, 8])
        columns = -(-max(lengths) // wanted)
        spare_blocks = rng.randint(0, 9)
        slots = sum(-(-length // wanted) for length in lengths) * wanted + spare_blocks * wanted
        pool = {
            "lengths": lengths,
            "kv_bytes_per_token": kv_bytes,
            "pool_bytes": slots * kv_bytes + rng.randint(0, kv_bytes - 1),
            "entry_bytes": entry_bytes,
            "table_bytes": len(lengths) * columns * entry_bytes + rng.randint(0, entry_bytes * 3),
        }
        if _best_waste(pool) is not None:
            return pool


def _needed(pool: dict[str, Any], size: int) -> int:
    return sum(-(-int(length) // size) for length in pool["lengths"])


def _table_bytes(pool: dict[str, Any], size: int) -> int:
    return int(len(pool["lengths"]) * -(-max(pool["lengths"]) // size) * pool["entry_bytes"])


def _most_blocks(pool: dict[str, Any], size: int) -> int:
    return int(pool["pool_bytes"] // (size * pool["kv_bytes_per_token"]))


def _waste(pool: dict[str, Any], size: int) -> int:
    return _needed(pool, size) * size - int(sum(pool["lengths"]))


def _best_waste(pool: dict[str, Any]) -> int | None:
    fitting = (size for size in SIZES if _table_bytes(pool, size) <= pool["table_bytes"])
    held = [size for size in fitting if _needed(pool, size) <= _most_blocks(pool, size)]
    return min((_waste(pool, size) for size in held), default=None)


def _faults(case: Case, got: Any) -> list[str]:
    (pool,) = case.arguments
    names = ("block_size", "num_blocks")
    if type(got) is not dict or set(got) != set(names) or any(type(got[name]) is not int for name in names):
        return ["shape"]
    size, blocks = got["block_size"], got["num_blocks"]
    if size not in SIZES:
        return ["power"]
    broken = {
        "pool": blocks > _most_blocks(pool, size),
        "tables": _table_bytes(pool, size) > pool["table_bytes"],
        "too few": blocks < _needed(pool, size),
        "waste": _waste(pool, size) > (_best_waste(pool) or 0),
    }
    return [name for name, is_broken in broken.items() if is_broken]


def _fault(name: str, message: str) -> Mistake:
    return Mistake(name, lambda case, got: _faults(case, got)[0] == name, message)


def _case(pool: dict[str, Any], call: str) -> Case:
    return Case((pool,), None, call)


def _hidden(seed: int) -> list[Case]:
    names = [f"lab02.block-size.{number}" for number in range(4)]
    return [_case(_draw(seed, name), _("cut(another pool)")) for name in names]


BLOCK_SIZE = Task(
    id="lab02.block-size",
    title=_("Task 4: a block size under two budgets"),
    kind="design",
    points=4,
    minutes=15,
    difficulty="medium",
    call="cut(pool)",
    visible=lambda seed: [_case(draw_pool(seed), _("cut(your pool)"))],
    hidden=_hidden,
    compare=lambda case, got: not _faults(case, got),
    mistakes=(
        _fault("shape", _("Return a dict with block_size and num_blocks, both whole numbers.")),
        _fault("power", _("The kernels take powers of two from 1 to 256.")),
        _fault("pool", _("So many blocks of this size are larger than the pool.")),
        _fault("tables", _("The block tables outgrow table_bytes: every row is as wide as the longest request needs.")),
        _fault("too few", _("The requests do not all fit: each one rounds up by itself.")),
        _fault("waste", _("It holds, and another size that holds too leaves fewer slots of the last blocks empty.")),
    ),
    hints=(
        _("What grows when blocks get smaller? And what when they get larger?"),
        _("Half the size never wastes more slots, and it needs about twice the entries."),
        _("for each power of two from 1 on: do the tables fit, do the blocks fit? take the first that holds"),
    ),
    seconds=3,
)
