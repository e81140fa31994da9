"""`Detokenizer`: token ids to text as they come, never showing half a character or a part of a stop string."""

from collections.abc import Callable, Sequence

from servelab.engine.stop import StopStrings
from servelab.model.tokenizer import Tokenizer
from servelab.trace import token_texts

INCOMPLETE = "\ufffd"
# Tokens that are decoded together at most, while characters are complete: decoding all of them for each new one
# would make a long output cost the square of its length.
WINDOW = 8
# A character has 4 bytes at most, so that of what shows as U+FFFD no more than the last 3 can still become one.
MOST_INCOMPLETE = 3


class Detokenizer:
    """Joined, the texts that `add` and `flush` return are the decoding of all tokens, up to the first stop string.

    A character may be spread over several tokens, and a tokenizer may treat the first token of a text specially
    (a leading space). So the new text is the difference of two decodings that begin at the same earlier token.

    decode: token ids to text, U+FFFD where a character is incomplete. stop: strings that end the text before them.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = StopStrings(stop) if stop else None
        self._window: list[int] = []
        self._boundary = 0  # in the window: behind the last token but one after which all characters were complete
        self._shown = 0  # characters of the window's decoding that were given out
        self.text = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come: the text is over."""
        return self._stop is not None and self._stop.found

    def add(self, token_id: int, *, may_stop: bool = True) -> str:
        """Take one more token and return the text that is certain now: "" while it may still become something else.

        may_stop: whether a stop string counts that begins with this token's text.
        """
        self._window.append(token_id)
        known = self._decode(self._window)
        certain = max(len(known.rstrip(INCOMPLETE)), len(known) - MOST_INCOMPLETE)
        text = known[self._shown : certain]
        self._shown = max(self._shown, certain)
        if certain == len(known):
            if len(self._window) >= WINDOW:
                self._window = self._window[self._boundary :]
                self._shown = len(self._decode(self._window))
            self._boundary = len(self._window)
        elif len(self._window) >= 2 * WINDOW:
            self._shorten(known)
        return self._show(text, may_stop)

    def flush(self) -> str:
        """The rest when no more tokens come; an incomplete character shows as U+FFFD."""
        text = self._decode(self._window)[self._shown :]
        self._window, self._boundary, self._shown = [], 0, 0
        shown = self._show(text, may_stop=True)
        if self._stop is None:
            return shown
        rest = self._stop.flush()
        self.text += rest
        return shown + rest

    def _shorten(self, known: str) -> None:
        """Let the window, whose decoding `known` ends in an incomplete character, begin where a later one begins.

        That is where its two parts decode to the same as both together: a character that was cut would not.
        """
        held, stop = len(known) - self._shown, len(self._window) - WINDOW // 2
        for start in range(stop, max(0, stop - WINDOW), -1):
            rest = self._decode(self._window[start:])
            if len(rest) >= held and self._decode(self._window[:start]) + rest == known:
                self._window, self._boundary, self._shown = self._window[start:], 0, len(rest) - held
                return

    def _show(self, text: str, may_stop: bool) -> str:
        if self._stop is not None and may_stop:
            text = self._stop.feed(text)
        self.text += text
        return text


class TokenTexts:
    """What widgets show of each token: "" where it has no text of its own. Each token is looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, token_ids: Sequence[int]) -> list[str]:
        return [self._known[token] if token in self._known else self._look_up(token) for token in token_ids]

    def _look_up(self, token_id: int) -> str:
        try:
            piece = self._tokenizer.token_text(token_id)
        except ValueError:  # many models have rows beyond their tokenizer's last id, to fill a tile
            piece = ""
        [self._known[token_id]] = token_texts([piece])
        return self._known[token_id]
