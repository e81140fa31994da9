"""`Request`: one prompt on its way to one answer. A prompt with `n` answers is a group of `n` requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from servelab.engine.detokenizer import Detokenizer
from servelab.engine.output import RequestMetrics, RequestOutput
from servelab.sampling import Logprobs, SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """What the engine knows of a request. Two counters say all about its progress.

    num_tokens: prompt tokens and the output tokens so far. num_computed_tokens: those whose keys and values are
    in the cache. The gap is what the next steps must compute: a whole prompt (prefill), its rest (chunk), one
    token (decode), or everything again (after a preemption) that the prefix cache has not kept.

    request_id, index: what the caller knows it by. sample_id: its own name in cache and trace, "A" or "A#1".
    token_ids: the prompt, then the output. end_token_ids: any of them ends the output.
    unborn: the other answers to its prompt, until it is computed: then they are forked from this request.
    is_forked: its last block may belong to others of its group, so it is copied before the first write.
    num_full_blocks: the leading blocks that were offered to the prefix cache, or came from there.
    """

    request_id: str
    index: int
    token_ids: list[int]
    params: SamplingParams
    end_token_ids: frozenset[int]
    generator: torch.Generator
    detokenizer: Detokenizer
    metrics: RequestMetrics
    num_computed_tokens: int = 0
    num_full_blocks: int = 0
    is_forked: bool = False
    unborn: list["Request"] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    num_prompt_tokens: int = field(init=False)
    max_num_tokens: int = field(init=False)
    sample_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = self.num_prompt_tokens + self.params.max_tokens
        self.sample_id = sample_id(self.request_id, self.index)
        if self.params.logprobs is not None:
            self.logprobs = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def restart(self, num_cached_tokens: int) -> None:
        """Nothing is in the cache but the tokens of a cached prefix."""
        self.num_computed_tokens = num_cached_tokens
        self.num_full_blocks = 0
        self.is_forked = False

    def extend(self, token_ids: Sequence[int]) -> tuple[int, str, str | None]:
        """Append new output tokens up to the first one that ends the output.

        Returns how many were appended, the text that can be shown now, and why the output is over: "stop", "length"
        or None.
        """
        text = ""
        for count, token_id in enumerate(token_ids, start=1):
            self.token_ids.append(token_id)
            if token_id in self.end_token_ids:
                return count, text, "stop"
            text += self.detokenizer.add(token_id, may_stop=self.num_output_tokens >= self.params.min_tokens)
            if self.detokenizer.stopped:
                return count, text, "stop"
            if len(self.token_ids) == self.max_num_tokens:
                return count, text, "length"
        return len(token_ids), text, None

    def output(self, num_new_tokens: int, text: str, reason: str | None) -> RequestOutput:
        """What is to be told of the request now, `num_new_tokens` and `text` being what is new."""
        token_ids = self.output_token_ids
        return RequestOutput(
            request_id=self.request_id,
            index=self.index,
            token_ids=token_ids,
            text=self.detokenizer.text,
            delta_token_ids=token_ids[len(token_ids) - num_new_tokens :],
            delta_text=text,
            finish_reason=reason,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            metrics=self.metrics,
        )


def sample_id(request_id: str, index: int) -> str:
    """The name of one answer of a request in cache and trace: the first one has the request's own."""
    return f"{request_id}#{index}" if index else request_id
