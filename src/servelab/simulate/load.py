"""Who comes when, and with how much: requests at once, at a rate, or from users who wait for their answers.

Lengths come from `equal_lengths` or, long-tailed as real ones are, from `servelab.costs.workload`.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from servelab.costs import RequestLength


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes at `time_s`, in seconds. How long its output gets, the scheduler learns when it ends."""

    time_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def equal_lengths(num_requests: int, prompt_tokens: int, output_tokens: int) -> list[RequestLength]:
    """So many requests of one length. Raises ValueError for a count below 1."""
    for name, count in (
        ("num_requests", num_requests),
        ("prompt_tokens", prompt_tokens),
        ("output_tokens", output_tokens),
    ):
        if type(count) is not int or count < 1:
            raise ValueError(f"expected {name} as an integer >= 1, got {count!r}")
    return [RequestLength(prompt_tokens, output_tokens)] * num_requests


def arrive_at_once(lengths: Iterable[RequestLength]) -> list[Arrival]:
    """All at time 0, in this order."""
    return [Arrival(0.0, length.prompt_tokens, length.output_tokens) for length in lengths]


def arrive_at_rate(lengths: Iterable[RequestLength], requests_per_s: float, *, seed: int = 0) -> list[Arrival]:
    """A Poisson process: the times between two arrivals are exponential with the mean 1 / `requests_per_s`.

    The same on every machine. Raises ValueError for a rate that is not above 0.
    """
    if not 0 < requests_per_s < math.inf:
        raise ValueError(f"expected requests_per_s above 0, got {requests_per_s!r}")
    generator, now, arrivals = random.Random(seed), 0.0, []
    for length in lengths:
        now += generator.expovariate(requests_per_s)
        arrivals.append(Arrival(now, length.prompt_tokens, length.output_tokens))
    return arrivals


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` who each send a request, read the answer for `think_s` seconds, and send the next one of `lengths`.

    So no more than `users` requests are ever there, however slow the server is. Raises ValueError for what cannot be.
    """

    lengths: Sequence[RequestLength]
    users: int
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if type(self.users) is not int or self.users < 1:
            raise ValueError(f"expected users as an integer >= 1, got {self.users!r}")
        if not 0 <= self.think_s < math.inf:
            raise ValueError(f"expected think_s as seconds of at least 0, got {self.think_s!r}")

    def first(self) -> list[Arrival]:
        """What the users begin with, at time 0."""
        return arrive_at_once(self.lengths[: self.users])

    def later(self) -> list[RequestLength]:
        """What comes whenever somebody has had an answer, in this order."""
        return list(self.lengths[self.users :])
