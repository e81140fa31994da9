"""Text to token ids and back."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Messages = Sequence[Mapping[str, str]]


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer. `eos_token_ids`: any of them ends an output."""

    eos_token_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written in it count as such."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without special tokens; U+FFFD where a character is incomplete."""
        ...

    def token_text(self, token_id: int) -> str:
        """Text of one token on its own, special tokens by name; U+FFFD for a part of a character."""
        ...

    def chat(self, messages: Messages) -> str:
        """The prompt for ``[{"role": ..., "content": ...}, ...]``, up to where the answer begins."""
        ...


class ByteTokenizer:
    """One token a byte of UTF-8, and 256 as the end: for tests and examples by hand."""

    eos_token_ids: tuple[int, ...] = (256,)
    vocab_size = 257

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < 256).decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        return "<end>" if token_id == 256 else self.decode([token_id])

    def chat(self, messages: Messages) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "
