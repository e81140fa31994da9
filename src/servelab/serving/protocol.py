"""Requests of OpenAI's API as this server takes them, and how each becomes prompts and `SamplingParams`.

Fields have OpenAI's names, and vLLM's where OpenAI has none (top_k, min_p, ...). What would change an answer and is not
built here (tools, JSON schemas, echo, ...) is refused, never ignored; an unknown field is ignored, as OpenAI does.
https://platform.openai.com/docs/api-reference
"""

import sys
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from servelab.sampling import SamplingParams

MAX_CHOICES = 64  # `n` times prompts
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024

# fail_fast: the first wrong item is told. All of them would be a gigabyte for a body of some megabytes.
TokenIds = Annotated[list[Annotated[int, Field(strict=True)]], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Refusable = Any | None


def few_biases(value: Any) -> Any:
    """Before each of them is looked at."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"expected at most {MAX_BIASES} biases, got {len(value)}")
    return value


class StreamOptions(BaseModel):
    """include_usage: one more chunk at the end, which counts the tokens."""

    include_usage: bool = False


class Sampled(BaseModel):
    """What both kinds of request have in common. Defaults are OpenAI's."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str
    stream: Annotated[bool, BeforeValidator(lambda value: value or False)] = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), BeforeValidator(lambda value: 1 if value is None else value)] = 1
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = 1.0
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = 0.0
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = 0.0
    logit_bias: Annotated[dict[str, Number] | None, BeforeValidator(few_biases)] = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[Texts, Field(max_length=MAX_STOPS)] | None = None
    user: str | None = None

    # Beyond OpenAI's API, under vLLM's names.
    top_k: Annotated[int, Field(ge=-1)] = 0
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] = 1.0
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKENS)] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not (key.isascii() and key.isdigit() and len(key) <= 9):
                raise ValueError(f"expected token ids as keys, got {key!r:.40}")
        return value

    @field_validator("stream_options")
    @classmethod
    def _streamed(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("expected stream_options only where stream is true")
        return value

    @property
    def stream_includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """Raises ValueError for what the engine does not take."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            seed=None if self.seed is None else self.seed % 2**63,
            n=self.n,
            stop=() if self.stop is None else self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            logit_bias={int(key): bias for key, bias in self.logit_bias.items()} if self.logit_bias else None,
            cache_salt=self.cache_salt,
        )


# Fields that are not built here, with the values that change nothing.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "audio": (),
}


def refuse(value: Any, info: ValidationInfo) -> None:
    allowed = HARMLESS[str(info.field_name)]
    if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
        raise ValueError(f"{info.field_name} is not supported by this server")


class CompletionRequest(Sampled):
    """The body of `/v1/completions`. prompt: a text, texts, token ids, or lists of token ids."""

    prompt: str | TokenIds | Texts | Annotated[list[TokenIds], Field(fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1, le=sys.maxsize)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: Refusable = None
    suffix: Refusable = None
    best_of: Refusable = None

    _refuse = field_validator("echo", "suffix", "best_of")(refuse)

    def prompts(self) -> list[str | list[int]]:
        """One or more. Raises ValueError for none."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ValueError("expected a prompt of at least one token, got []")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class TextPart(BaseModel):
    """A piece of a message. Pictures and sounds are not for a language model alone."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a chat. content: text, or pieces of text."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: Annotated[str, Field(min_length=1)]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class ChatCompletionRequest(Sampled):
    """The body of `/v1/chat/completions`. Without a limit an answer may fill what the model's context has left."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=sys.maxsize)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=sys.maxsize)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Refusable = None
    tool_choice: Refusable = None
    functions: Refusable = None
    function_call: Refusable = None
    response_format: Refusable = None
    audio: Refusable = None

    _refuse = field_validator("tools", "tool_choice", "functions", "function_call", "response_format", "audio")(refuse)

    @field_validator("top_logprobs")
    @classmethod
    def _asked_for(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("expected top_logprobs only where logprobs is true")
        return value

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
