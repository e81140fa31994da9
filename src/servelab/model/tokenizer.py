"""Text to token ids and back."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import tokenizers

Messages = Sequence[Mapping[str, str]]
REPLACEMENT = "\ufffd"


def byte_characters() -> dict[str, int]:
    """The character that byte-level BPE (GPT-2) writes for a byte: itself where it can be seen, else one above 255."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = byte_characters()


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

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one token on its own, which may be a part of a character. ValueError for an id that is none."""
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

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == 256 else bytes([token_id])

    def chat(self, messages: Messages) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "


class PretrainedTokenizer:
    """The tokenizer of a model folder: `tokenizer.json`, read by the tokenizers library, and a chat template.

    The template is Jinja; it runs in the sandbox that cannot reach outside its own values.
    Raises ValueError when `tokenizer.json` is missing or cut off.
    """

    def __init__(self, folder: Path, eos_token_ids: Sequence[int] = ()) -> None:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ValueError(f"expected tokenizer.json in {folder}, got no such file")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise ValueError(f"expected a whole tokenizer.json, got another file at {path}: {error}") from None
        settings_path = folder / "tokenizer_config.json"
        settings = json.loads(settings_path.read_text(encoding="utf-8")) if settings_path.exists() else {}
        self.special_tokens = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in settings.items()
            if name in ("bos_token", "eos_token", "pad_token", "unk_token") and value
        }
        own_end = self.tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))
        self.eos_token_ids = tuple(dict.fromkeys((*eos_token_ids, *(() if own_end is None else (own_end,)))))
        self.chat_template = read_chat_template(folder, settings)

    @property
    def vocab_size(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`. The start token, where the model has one, is added unless `text` begins with it."""
        start = self.special_tokens.get("bos_token")
        add_special_tokens = not (start and text.startswith(start))
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        piece = self.tokenizer.id_to_token(token_id)
        if piece is None:
            raise ValueError(f"expected a token id in 0..{self.vocab_size - 1}, got {token_id}")
        text = str(self.tokenizer.decode([token_id], skip_special_tokens=False))
        # SentencePiece drops the space before the first token of a text; on its own every token is the first.
        return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        text = self.token_text(token_id)
        if REPLACEMENT not in text:
            return text.encode("utf-8")
        piece = str(self.tokenizer.id_to_token(token_id))
        if fallback := re.fullmatch("<0x([0-9A-F]{2})>", piece):  # SentencePiece's way to write a byte
            return bytes([int(fallback[1], 16)])
        if all(character in BYTES for character in piece):
            return bytes(BYTES[character] for character in piece)
        return text.encode("utf-8")

    def chat(self, messages: Messages) -> str:
        """See `Tokenizer`. Raises ValueError when the model has no chat template or the template refuses."""
        if self.chat_template is None:
            raise ValueError("expected a model with a chat template, got one that only continues text")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = refuse
        try:
            template = environment.from_string(self.chat_template)
            return template.render(messages=list(messages), add_generation_prompt=True, **self.special_tokens)
        except TemplateError as error:
            raise ValueError(f"expected messages that the model's chat template accepts, got: {error}") from None


def read_chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template of `chat_template.jinja`, or the one (or the default of several) in `tokenizer_config.json`."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((item["template"] for item in template if item["name"] == "default"), None)
    return template


def refuse(message: str) -> NoReturn:
    """What a chat template calls when it does not accept the messages."""
    from jinja2 import TemplateError

    raise TemplateError(message)
