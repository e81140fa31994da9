"""Lab 01: KV accounting, and finding the crossover."""

from typing import Any

from servelab.course.tasks.lab01.accounting import CROSSOVER, KV_BYTES, POOL_BLOCKS, model
from servelab.course.tasks.lab01.measure import MEASURE, toy_load
from servelab.course.tasks.lab01.plan import PLAN, draw_card

TASKS = (KV_BYTES, CROSSOVER, POOL_BLOCKS, PLAN, MEASURE)


def constants(seed: int) -> dict[str, Any]:
    """What a learner's notebook shows as theirs: the shapes of a model, a card to plan for, a load to measure."""
    return {"model": model(seed), "card": draw_card(seed), "load": toy_load(seed)}
