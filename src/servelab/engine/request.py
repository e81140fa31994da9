"""`Request`: one prompt on its way to an answer."""

from dataclasses import dataclass, field

import torch

from servelab.engine.detokenizer import Detokenizer
from servelab.engine.output import RequestMetrics
from servelab.sampling import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """What the engine knows of a request. Two counters say all about its progress.

    num_tokens: prompt tokens and the output tokens so far. num_computed_tokens: those whose keys and values are
    in the cache. The gap is what the next steps must compute: a whole prompt (prefill), its rest (chunk), one
    token (decode), or everything again (after a preemption).
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    generator: torch.Generator
    detokenizer: Detokenizer
    metrics: RequestMetrics
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def max_num_tokens(self) -> int:
        """Prompt tokens and as many output tokens as it may have."""
        return len(self.prompt_token_ids) + self.params.max_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """The token ids ``start .. stop - 1``, prompt first."""
        num_prompt_tokens = len(self.prompt_token_ids)
        if start >= num_prompt_tokens:
            return self.output_token_ids[start - num_prompt_tokens : stop - num_prompt_tokens]
        return (self.prompt_token_ids + self.output_token_ids)[start:stop]
