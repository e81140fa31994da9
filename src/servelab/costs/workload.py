"""The workload that the chapters share: how long requests are, prompt and output tokens apart.

Lengths of real requests are skewed: most are short, a few are long (Kwon et al. 2023, figure 11, for ShareGPT and
Alpaca). A lognormal distribution has that shape. The lengths are its quantiles, not draws from it, so that even a
small workload has the mean it was asked for; a seed only shuffles them and splits each into prompt and output.
"""

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

SPREAD = 0.9  # standard deviation of the logarithm: about 1 request in 20 is longer than three times the mean


@dataclass(frozen=True, slots=True)
class RequestLength:
    """One request: `prompt_tokens` are known when it arrives, `output_tokens` only when it ends."""

    prompt_tokens: int
    output_tokens: int

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together: the slots that a server must be ready to give this request."""
        return self.prompt_tokens + self.output_tokens


def workload(
    num_requests: int = 500, *, mean_tokens: float = 300, max_tokens: int = 2048, seed: int = 0
) -> list[RequestLength]:
    """The lengths of `num_requests` requests, in order of arrival; the same on every machine.

    mean_tokens: prompt and output tokens together, on average. max_tokens: what is longer is cut.
    The output is between a fifth and four fifths of a request. Raises ValueError when the mean is not below the
    maximum, or there is no request.
    """
    if num_requests < 1:
        raise ValueError(f"expected num_requests >= 1, got {num_requests}")
    if not 2 <= mean_tokens < max_tokens:
        raise ValueError(f"expected 2 <= mean_tokens < max_tokens, got {mean_tokens} and {max_tokens}")
    rng = random.Random(seed)
    logarithm = NormalDist(_location(mean_tokens, max_tokens), SPREAD)
    quantiles = [logarithm.inv_cdf((number + 0.5) / num_requests) for number in range(num_requests)]
    rng.shuffle(quantiles)
    return [_split(_length(quantile, max_tokens), rng) for quantile in quantiles]


def _length(logarithm: float, max_tokens: int) -> int:
    return min(max_tokens, max(2, round(math.exp(logarithm))))


def _split(num_tokens: int, rng: random.Random) -> RequestLength:
    output_tokens = min(num_tokens - 1, max(1, round(num_tokens * rng.uniform(0.2, 0.8))))
    return RequestLength(num_tokens - output_tokens, output_tokens)


def _location(mean_tokens: float, max_tokens: int) -> float:
    """The mean of the logarithm for which lengths cut at `max_tokens` have the wanted mean, by bisection."""
    low, high = 0.0, math.log(max_tokens)
    for _ in range(60):
        middle = (low + high) / 2
        if _mean_when_cut(middle, max_tokens) < mean_tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _mean_when_cut(location: float, max_tokens: int) -> float:
    """E[min(X, max_tokens)] of a lognormal X."""
    standard = NormalDist()
    cut = (math.log(max_tokens) - location) / SPREAD
    below = math.exp(location + SPREAD**2 / 2) * standard.cdf(cut - SPREAD)
    return below + max_tokens * (1 - standard.cdf(cut))
