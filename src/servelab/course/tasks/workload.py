"""Loads for tasks that measure: request lengths drawn from a seed, served by the real engine.

Counts of tokens, blocks and steps depend on the lengths alone, not on the network. So a learner runs a load on a
model, and a task is judged on a trace of the same load served by a network that computes nothing.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servelab.engine import Engine
    from servelab.trace import Trace

Load = dict[str, Any]
"""``requests``: a list of ``[step of arrival, prompt tokens, output tokens]``; ``engine``: `EngineConfig`'s options."""


def draw_load(
    rng: random.Random,
    num_requests: int,
    prompt: tuple[int, int],
    output: tuple[int, int],
    last_arrival: int,
    **engine: int,
) -> Load:
    """Draw requests whose lengths lie in the two ranges, ends included; half of them come at step 0.

    Prefix caching is off: all prompts begin alike, and only their lengths are to count.
    """
    arrivals = sorted(0 if index % 2 == 0 else rng.randint(1, last_arrival) for index in range(num_requests))
    requests = [[step, rng.randint(*prompt), rng.randint(*output)] for step in arrivals]
    return {"requests": requests, "engine": {"prefix_caching": False, **engine}}


def serve(engine: Engine, load: Load) -> Trace:
    """Serve the load to its end, each request from its step of arrival on, and return the engine's trace.

    Every request produces all its output tokens: an end token does not stop it.
    """
    from servelab.sampling import SamplingParams

    waiting, step = list(load["requests"]), 0
    while waiting or engine.has_unfinished():
        while waiting and (waiting[0][0] <= step or not engine.has_unfinished()):
            _, num_prompt_tokens, num_output_tokens = waiting.pop(0)
            engine.add_request([65] * num_prompt_tokens, SamplingParams(max_tokens=num_output_tokens, ignore_eos=True))
        engine.step()
        step += 1
    return engine.trace


def record(load: Load) -> dict[str, Any]:
    """Serve the load by the engine with a network that computes nothing.

    Returns the trace as plain data. It is remembered: read it, do not change it.
    """
    return _record(json.dumps(load))


@lru_cache(maxsize=16)
def _record(load: str) -> dict[str, Any]:
    from servelab.course.tasks.silent import silent_model
    from servelab.engine import Engine, EngineConfig

    chosen = json.loads(load)
    return serve(Engine(silent_model(), EngineConfig(**chosen["engine"])), chosen).to_json()


def describe_load(load: Load) -> str:
    """The load in a few words, for the call that a message shows."""
    return ", ".join(f"{prompt}+{output}" for _, prompt, output in load["requests"])
