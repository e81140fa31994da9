"""Lab 02: a block manager of your own, its boundary, its block size, and what it wastes."""

from typing import Any

from servelab.course.tasks.lab02.boundary import EVIDENCE, LAST_BLOCK
from servelab.course.tasks.lab02.manager import BLOCK_MANAGER, own_operations
from servelab.course.tasks.lab02.size import BLOCK_SIZE, draw_pool
from servelab.course.tasks.lab02.waste import WASTE, crowded_load

TASKS = (BLOCK_MANAGER, EVIDENCE, LAST_BLOCK, BLOCK_SIZE, WASTE)


def constants(seed: int) -> dict[str, Any]:
    """What a learner's notebook shows as theirs: operations to follow by hand, a pool to cut, a load to measure."""
    return {"operations": own_operations(seed), "pool": draw_pool(seed), "load": crowded_load(seed)}
