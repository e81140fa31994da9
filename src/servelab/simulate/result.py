"""`Simulation`: what became of all requests, on the simulated clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from servelab.simulate.load import Arrival
from servelab.trace import Trace


@dataclass(slots=True)
class Served:
    """What became of one request; times in seconds on the simulated clock."""

    arrival: Arrival
    first_token_s: float | None = None
    finish_s: float = 0.0
    num_preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to the first token, waiting included."""
        assert self.first_token_s is not None, "a simulation ends when everybody has been served"
        return self.first_token_s - self.arrival.time_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with one token."""
        others = self.arrival.output_tokens - 1
        return (self.finish_s - self.arrival.time_s - self.ttft_s) / others if others else None


@dataclass(slots=True)
class Crowd:
    """Means over time: how many requests run, and how many tokens they hold in the cache together."""

    seconds: float = 0.0
    request_seconds: float = 0.0
    token_seconds: float = 0.0

    def add(self, seconds: float, num_requests: int, num_tokens: int) -> None:
        self.seconds += seconds
        self.request_seconds += seconds * num_requests
        self.token_seconds += seconds * num_tokens

    @property
    def mean_requests(self) -> float:
        return self.request_seconds / self.seconds if self.seconds else 0.0

    @property
    def mean_tokens(self) -> float:
        """Tokens of one request, in the mean over requests and time."""
        return self.token_seconds / self.request_seconds if self.request_seconds else 0.0


@dataclass(slots=True)
class Simulation:
    """All requests, in order of arrival.

    seconds: from the first arrival to the last token. peak_running: most requests at the same time. running: over all
    steps; running_when_full: over those in which somebody waited. trace: None where the configuration records none.
    """

    served: list[Served] = field(default_factory=list)
    seconds: float = 0.0
    num_steps: int = 0
    peak_running: int = 0
    running: Crowd = field(default_factory=Crowd)
    running_when_full: Crowd = field(default_factory=Crowd)
    trace: Trace | None = None

    @property
    def num_output_tokens(self) -> int:
        return sum(one.arrival.output_tokens for one in self.served)

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.seconds

    @property
    def num_preemptions(self) -> int:
        return sum(one.num_preemptions for one in self.served)

    @property
    def mean_ttft_s(self) -> float:
        return sum(one.ttft_s for one in self.served) / len(self.served)

    @property
    def mean_tpot_s(self) -> float | None:
        """Over the requests with more than one output token; None where there is none."""
        times = [one.tpot_s for one in self.served if one.tpot_s is not None]
        return sum(times) / len(times) if times else None

    def ttft_quantile_s(self, share: float) -> float:
        """The time within which this share of the requests, above 0 and at most 1, has its first token."""
        return quantile([one.ttft_s for one in self.served], share)

    def summary(self) -> dict[str, Any]:
        """What matters in a few numbers, as plain JSON values; the keys carry their units."""
        return {
            "requests": len(self.served),
            "output_tokens": self.num_output_tokens,
            "seconds": self.seconds,
            "output_tokens_per_s": self.output_tokens_per_s,
            "mean_ttft_s": self.mean_ttft_s,
            "p50_ttft_s": self.ttft_quantile_s(0.5),
            "p95_ttft_s": self.ttft_quantile_s(0.95),
            "mean_tpot_s": self.mean_tpot_s,
            "preemptions": self.num_preemptions,
            "steps": self.num_steps,
            "peak_running": self.peak_running,
            "mean_running": self.running.mean_requests,
            "mean_running_when_full": self.running_when_full.mean_requests,
            "mean_tokens_when_full": self.running_when_full.mean_tokens,
        }


def quantile(values: Sequence[float], share: float) -> float:
    """The least of the values that at least this share of them does not exceed. Raises ValueError outside 0..1."""
    if not 0 < share <= 1:
        raise ValueError(f"expected a share above 0, at most 1, got {share!r}")
    return sorted(values)[math.ceil(share * len(values)) - 1]
