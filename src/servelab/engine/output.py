"""`RequestOutput`: what a step has to say about one request."""

from dataclasses import dataclass, field

from servelab.sampling import Logprobs
from servelab.speculative import SpeculationMetrics


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds on the clock of `time.perf_counter`, None until they are known; counts in tokens.

    num_cached_tokens: prompt tokens that were not computed, because the prefix cache had them (or because another
    answer to the same prompt did) when the request first ran. speculation: what drafting brought it.
    """

    arrival_s: float
    num_prompt_tokens: int
    first_token_s: float | None = None
    finish_s: float | None = None
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    speculation: SpeculationMetrics = field(default_factory=SpeculationMetrics)

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, waiting included."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, averaged. None until the request is over, or with one token."""
        if self.first_token_s is None or self.finish_s is None or self.num_output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request after a step that gave it a token or ended it.

    token_ids, text: the output so far, without the prompt. A token that ended the output is the last of the ids
    and has no part in the text. delta_token_ids, delta_text: what is new since the output before this one; the
    delta texts joined are the text. The text may lag behind the ids while a character is incomplete, or while it may
    become a stop string; a stop string and what follows it are no part of it.
    index: which of the answers to one prompt this is, 0 .. n - 1.
    finish_reason: None while it runs; "stop" (an end token, a stop token or a stop string), "length" (`max_tokens`),
    "abort", "error". logprobs: one for each of the ids, or None where the request asked for none.
    """

    request_id: str
    index: int
    token_ids: list[int]
    text: str
    delta_token_ids: list[int]
    delta_text: str
    finish_reason: str | None
    logprobs: list[Logprobs] | None
    metrics: RequestMetrics
