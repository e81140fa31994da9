"""`Bench`: what every section is given: which model, how often to measure, and somebody to tell about progress."""

import functools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servelab.model import Model, load_model, toy_model

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"


@dataclass(frozen=True)
class Bench:
    """model_name: a name or folder for `load_model`, or "toy" (tests). threads: of the engine, and of
    those it is compared with.

    rounds: how often each thing is measured. quick: smaller cases, fewer rounds: does it run at all?
    tell: called with a short text before each piece of work.
    """

    model_name: str
    threads: int
    rounds: int = 5
    quick: bool = False
    tell: Callable[[str], None] = lambda text: None

    @functools.cached_property
    def model(self) -> Model:
        return load(self.model_name)


def load(name: str) -> Model:
    """The model on the CPU, in the dtype that is the fastest there; "toy" is the tests' own."""
    return toy_model() if name == "toy" else load_model(name, device="cpu", progress=False)


def interleave(
    samplers: Mapping[str, Callable[[], float]], rounds: int, tell: Callable[[str], None] = lambda text: None
) -> dict[str, list[float]]:
    """Let each sampler measure once a round, in an order that changes from round to round.

    What a machine does beside us comes and goes; so does its clock rate. In turns it hits all of them alike.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    names = list(samplers)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            tell(f"{name}, round {number + 1} of {rounds}")
            samples[name].append(samplers[name]())
    return samples


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round: what was measured side by side is divided."""
    return [a / b for a, b in zip(above, below, strict=True)]


def prompts(model: Model, num_prompts: int, num_tokens: int) -> list[list[int]]:
    """Prompts of ordinary English of exactly this length, no two with the same beginning."""
    token_ids = model.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    starts = random.Random(0).sample(range(len(token_ids)), num_prompts)
    endless = token_ids * (2 + num_tokens // len(token_ids))
    return [endless[start : start + num_tokens] for start in starts]


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)
