"""What a client is told: completions and chats, whole or in chunks, as OpenAI's API has them."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from servelab.engine import RequestOutput
from servelab.model import Tokenizer
from servelab.sampling import Logprobs

DONE = b"data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0  # JSON has no -infinity; OpenAI says this of a token that cannot be


def event(content: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class Counter:
    """Counts the tokens of one call. Prompt tokens count once a prompt, whatever n is."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens: dict[int, int] = {}
        self.num_cached_tokens: dict[str, int] = {}

    def hear(self, place: int, output: RequestOutput) -> None:
        self.num_output_tokens[place] = len(output.token_ids)
        if output.index == 0:
            self.num_cached_tokens[output.request_id] = output.metrics.num_cached_tokens

    def usage(self) -> dict[str, Any]:
        written = sum(self.num_output_tokens.values())
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.num_prompt_tokens + written,
            "prompt_tokens_details": {"cached_tokens": sum(self.num_cached_tokens.values())},
        }


class Writer:
    """Writes the answers to one call. Subclasses say what a choice looks like.

    prefix: of the id. kind: "object" of a whole answer; chunk_kind: of a chunk.
    """

    prefix = kind = chunk_kind = ""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, outputs: Sequence[RequestOutput], usage: Mapping[str, Any]) -> dict[str, Any]:
        choices = [{"index": place, **self.choice(output)} for place, output in enumerate(outputs)]
        return {**self.head, "object": self.kind, "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]], more: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.head, "object": self.chunk_kind, "choices": choices, **more}

    def choice(self, output: RequestOutput) -> dict[str, Any]:
        raise NotImplementedError

    def first(self, place: int) -> dict[str, Any] | None:
        """The choice that opens a stream, if there is one."""
        raise NotImplementedError

    def delta(self, place: int, output: RequestOutput) -> dict[str, Any]:
        """The choice with what is new."""
        raise NotImplementedError

    def token(self, token_id: int) -> str:
        """Its text; "" for the rows that many models have beyond their tokenizer's last id."""
        try:
            return self.tokenizer.token_text(token_id)
        except ValueError:
            return ""


class CompletionWriter(Writer):
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        super().__init__(model, tokenizer)
        self._offsets: dict[int, int] = {}  # characters before the next token, by place

    def choice(self, output: RequestOutput) -> dict[str, Any]:
        logprobs = None if output.logprobs is None else self._logprobs(output.logprobs, 0)[0]
        return {"text": output.text, "logprobs": logprobs, "finish_reason": output.finish_reason}

    def first(self, place: int) -> None:
        return None

    def delta(self, place: int, output: RequestOutput) -> dict[str, Any]:
        logprobs = None
        if output.logprobs is not None:
            new = output.logprobs[len(output.logprobs) - len(output.delta_token_ids) :]
            logprobs, self._offsets[place] = self._logprobs(new, self._offsets.get(place, 0))
        return {
            "index": place,
            "text": output.delta_text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
        }

    def _logprobs(self, logprobs: Sequence[Logprobs], offset: int) -> tuple[dict[str, Any], int]:
        tokens, offsets = [self.token(entry.token_id) for entry in logprobs], []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        # Keyed by text, as OpenAI has it: of tokens with one text, such as parts of a character, the likeliest stays.
        tops = [
            {token: finite(e.logprob)}
            | {
                self.token(token_id): finite(x)
                for token_id, x in zip(reversed(e.top_token_ids), reversed(e.top_logprobs), strict=True)
            }
            for token, e in zip(tokens, logprobs, strict=True)
        ]
        values = [finite(entry.logprob) for entry in logprobs]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset


class ChatWriter(Writer):
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, output: RequestOutput) -> dict[str, Any]:
        return {
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": None if output.logprobs is None else self._logprobs(output.logprobs),
            "finish_reason": output.finish_reason,
        }

    def first(self, place: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, place: int, output: RequestOutput) -> dict[str, Any]:
        logprobs = None
        if output.logprobs is not None:
            logprobs = self._logprobs(output.logprobs[len(output.logprobs) - len(output.delta_token_ids) :])
        delta = {"content": output.delta_text} if output.delta_text else {}
        return {"index": place, "delta": delta, "logprobs": logprobs, "finish_reason": output.finish_reason}

    def _logprobs(self, logprobs: Sequence[Logprobs]) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._entry(entry.token_id, entry.logprob),
                    "top_logprobs": [
                        self._entry(token_id, value)
                        for token_id, value in zip(entry.top_token_ids, entry.top_logprobs, strict=True)
                    ],
                }
                for entry in logprobs
            ],
            "refusal": None,
        }

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        token = self.token(token_id)
        content = self.tokenizer.token_bytes(token_id) if token else b""
        return {"token": token, "logprob": finite(logprob), "bytes": list(content)}
