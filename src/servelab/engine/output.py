"""`RequestOutput`: what a step has to say about one request."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds on the clock of `time.perf_counter`, None until they are known; counts in tokens."""

    arrival_s: float
    num_prompt_tokens: int
    first_token_s: float | None = None
    finish_s: float | None = None
    num_output_tokens: int = 0
    num_preemptions: int = 0

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
    delta texts joined are the text. The text may lag behind the ids while a character is incomplete.
    index: which of the answers to one prompt this is (0).
    finish_reason: None while it runs; "stop" (an end or stop token), "length" (`max_tokens`), "abort", "error".
    """

    request_id: str
    index: int
    token_ids: list[int]
    text: str
    delta_token_ids: list[int]
    delta_text: str
    finish_reason: str | None
    metrics: RequestMetrics
