"""How a contender is spoken to: one JSON object a line, over standard input and output.

    conductor -> contender   a `Setup`, once; then one `Task` after the other
    contender -> conductor   what it is ("versions"), once it is ready; then a `Timing` for each task, or an "error"

Each contender lives in a process of its own, so none shares threads, memory or imports with another, and all of them
can stay warm while they take turns. This file needs the standard library only: vLLM's environment has nothing of ours.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Setup:
    """model: a folder of safetensors, or "toy". threads: of each contender. token_budget: computed in one step."""

    model: str
    dtype: str
    threads: int
    max_num_seqs: int
    max_model_len: int
    token_budget: int


@dataclass(frozen=True)
class Task:
    """Requests that arrive together, all of one length, greedy, and never ended by a token.

    decode_steps: how many steps are timed in which all of them decode.
    """

    prompts: Sequence[Sequence[int]]
    decode_steps: int


@dataclass(frozen=True)
class Timing:
    """prefill_s: until the last request had its first token. step_s: each step after that, in which all decode.

    token_ids: what each request got, prefill included. peak_bytes: resident memory of the process at most, so far.
    """

    prefill_s: float
    step_s: Sequence[float]
    token_ids: Sequence[Sequence[int]] = field(default_factory=list)
    peak_bytes: int = 0


class Contender(Protocol):
    """versions: name -> version of what the numbers depend on."""

    versions: Mapping[str, str]

    def run(self, task: Task) -> Timing: ...


def time_steps(step: Callable[[], Mapping[str, list[int]]], task: Task) -> Timing:
    """Step an engine to which the requests of `task` were added, until all have decoded `decode_steps` times.

    step: computes one step and returns, of each request that got a token in it, all its output tokens so far.
    """
    outputs: dict[str, list[int]] = {}
    begin = time.perf_counter()
    while len(outputs) < len(task.prompts):
        outputs.update(step())
    prefilled = time.perf_counter()
    marks = [prefilled]
    for _ in range(task.decode_steps):
        new = step()
        if len(new) != len(task.prompts):
            raise RuntimeError(f"expected a token for each of {len(task.prompts)} requests, got {len(new)}")
        outputs.update(new)
        marks.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(marks)]
    return Timing(prefilled - begin, steps, list(outputs.values()), peak_bytes())


def peak_bytes() -> int:
    """Resident memory of this process at most, so far."""
    import resource

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


def serve(start: Callable[[Setup], Contender]) -> None:
    """Be a contender: start it from the first line, then run one task a line, until standard input ends.

    Standard output belongs to the protocol: whatever a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender = start(Setup(**json.loads(sys.stdin.readline())))
    say(answers, {"versions": dict(contender.versions)})
    for line in sys.stdin:
        try:
            say(answers, asdict(contender.run(Task(**json.loads(line)))))
        except Exception as error:
            say(answers, {"error": f"{type(error).__name__}: {error}"})


def say(answers: Any, content: Mapping[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()
