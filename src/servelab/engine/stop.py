"""`StopStrings`: end a text before the first stop string, and show nothing that may turn out to be a part of one."""

from collections.abc import Sequence


class StopStrings:
    """A filter between the text as it comes, in pieces, and the text that may be shown.

    The stop string that is complete first ends the text; of two that are complete at the same character, the longer
    one. So what is shown does not depend on how the text was cut into pieces.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._longest = max(map(len, self._strings))
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Take the next piece; return what may be shown. Nothing comes once a stop string was found."""
        if self.found or not text:
            return ""
        self._held += text
        matches = [(start + len(string), start) for string in self._strings if (start := self._held.find(string)) >= 0]
        if matches:
            self.found = True
            _, keep = min(matches)
        else:
            keep = len(self._held) - self._num_open()
        shown, self._held = self._held[:keep], self._held[keep:]
        return shown

    def flush(self) -> str:
        """What was held back, when no more text comes: it was no stop string after all."""
        held, self._held = self._held, ""
        return "" if self.found else held

    def _num_open(self) -> int:
        """Characters at the end with which a stop string may have begun."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(string.startswith(self._held[-length:]) for string in self._strings):
                return length
        return 0
