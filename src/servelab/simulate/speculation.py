"""`Drafting`: speculation on paper: how many draft tokens, how many of them stand, and what they cost."""

import math
import random
from dataclasses import dataclass

from servelab.sampling import Verification

TOKEN = 0  # what every prompt and output consists of: only how many there are counts


@dataclass(frozen=True, slots=True)
class Drafting:
    """k: draft tokens of a request and step, at least 1. acceptance: chance of each when those before it stand, 0..1.

    draft_cost: time of one draft token, in decode steps of one request: the size of the draft beside the target's, or
    about 0 for n-gram lookup. The drafts of all requests are made together. Raises ValueError for what cannot be.
    """

    k: int
    acceptance: float
    draft_cost: float = 0.0

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise ValueError(f"expected k as an integer >= 1, got {self.k!r}")
        if not 0 <= self.acceptance <= 1:
            raise ValueError(f"expected acceptance in 0..1, got {self.acceptance!r}")
        if not 0 <= self.draft_cost < math.inf:
            raise ValueError(f"expected draft_cost of at least 0, got {self.draft_cost!r}")

    def verify(self, num_drafts: int, generator: random.Random) -> Verification:
        """What becomes of so many draft tokens: those stand that come before the first draw above `acceptance`."""
        draws = [generator.random() for _ in range(num_drafts)]
        accepted = next((index for index, draw in enumerate(draws) if draw >= self.acceptance), num_drafts)
        return Verification(
            token_ids=[TOKEN] * (accepted + 1),
            num_accepted=accepted,
            p=[self.acceptance] * num_drafts,
            q=[1.0] * num_drafts,
            u=draws,
        )
