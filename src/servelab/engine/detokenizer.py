"""`Detokenizer`: token ids to text as they come, never showing half a character."""

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"


class Detokenizer:
    """Joined, the texts that `add` and `flush` return are the decoding of all tokens.

    A character may be spread over several tokens, and a tokenizer may treat the first token of a text specially
    (a leading space). So the new text is the difference of two decodings that both begin at an earlier token.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self._context = 0
        self._shown = 0
        self.text = ""

    def add(self, token_id: int) -> str:
        """Take one more token and return the text that is certain now: "" while a character is incomplete."""
        self._token_ids.append(token_id)
        shown, known = self._texts()
        if known.endswith(INCOMPLETE):
            return ""
        self._context, self._shown = self._shown, len(self._token_ids)
        return self._show(known[len(shown) :])

    def flush(self) -> str:
        """The rest when no more tokens come; an incomplete character shows as U+FFFD."""
        shown, known = self._texts()
        self._context = self._shown = len(self._token_ids)
        return self._show(known[len(shown) :])

    def _texts(self) -> tuple[str, str]:
        """The text that was shown and the text that is known, both from the context on."""
        window = self._token_ids[self._context :]
        return self._decode(window[: self._shown - self._context]), self._decode(window)

    def _show(self, text: str) -> str:
        self.text += text
        return text
