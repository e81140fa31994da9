"""Results as plain data, and their comparison by our own code: no `==` of the learner's ever runs."""

import math
import sys
from dataclasses import dataclass
from typing import Any

_ATOMS = (int, float, str, bool, type(None), bytes)


class NotPlainError(Exception):
    """A result holds something that is no plain data; the argument names its type."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` as exact int, float, str, bool, bytes, None, list, dict or set; tuples become lists.

    numpy and torch scalars and arrays become numbers and lists. A subclass that could lie about its equality,
    a generator, or any other object raises NotPlainError with the name of its type.
    """
    kind = type(value)
    if depth > 50:
        raise NotPlainError(kind.__name__)
    if kind in _ATOMS:
        return value
    if kind in (list, tuple):
        return [plain(item, depth + 1) for item in value]
    if kind is dict:
        return {_hashable(key): plain(item, depth + 1) for key, item in value.items()}
    if kind in (set, frozenset):
        return {_hashable(item) for item in value}
    module = sys.modules.get(kind.__module__)
    if kind.__module__ in ("numpy", "torch") and getattr(module, kind.__name__, None) is kind:
        value = value.detach().cpu() if kind.__name__ == "Tensor" else value
        return plain(value.tolist(), depth + 1) if hasattr(value, "tolist") else str(value)
    raise NotPlainError(kind.__name__)


def _hashable(key: Any) -> Any:
    if type(key) is tuple:
        return tuple(_hashable(item) for item in key)
    key = plain(key)
    if isinstance(key, list | dict | set):
        raise NotPlainError(type(key).__name__)
    return key


@dataclass(frozen=True)
class Comparison:
    """Equality of plain data. Floats agree within `relative` or `absolute`; NaN and infinity only with themselves.

    An int is never a bool. Where an int is expected, a float is wrong even when it is whole, unless `whole_floats`;
    where a float is expected an int is right. With `ordered=False` the order of lists' items does not matter.
    """

    relative: float = 1e-6
    absolute: float = 1e-9
    whole_floats: bool = False
    ordered: bool = True

    def __call__(self, expected: Any, got: Any) -> bool:
        """Whether plain `got` is what was expected."""
        return self.first_difference(plain(expected), got) is None

    def first_difference(self, expected: Any, got: Any, place: str = "") -> str | None:
        """Return where `got` first differs (as text such as ``[2]["A"]``; "" is the whole), or None if nowhere."""
        if isinstance(expected, list):
            return self._list(expected, got, place)
        if isinstance(expected, dict):
            if type(got) is not dict or got.keys() != expected.keys():
                return place
            found = (self.first_difference(item, got[key], f"{place}[{key!r}]") for key, item in expected.items())
            return next((one for one in found if one is not None), None)
        return None if self._same(expected, got) else place

    def _list(self, expected: list[Any], got: Any, place: str) -> str | None:
        if type(got) is not list or len(got) != len(expected):
            return place
        if self.ordered:
            pairs = enumerate(zip(expected, got, strict=True))
            found = (self.first_difference(one, other, f"{place}[{i}]") for i, (one, other) in pairs)
            return next((one for one in found if one is not None), None)
        rest = list(got)
        for item in expected:
            match = next((i for i, other in enumerate(rest) if self.first_difference(item, other) is None), None)
            if match is None:
                return place
            del rest[match]
        return None

    def _same(self, expected: Any, got: Any) -> bool:
        kind = type(got)
        if type(expected) is float:
            if kind not in (int, float):
                return False
            try:
                got = float(got)
            except OverflowError:  # an integer beyond the largest float
                return False
            if math.isnan(expected) or math.isinf(expected):
                return repr(expected) == repr(got)
            return math.isclose(expected, got, rel_tol=self.relative, abs_tol=self.absolute)
        if type(expected) is int and kind is float and self.whole_floats:
            return bool(got == expected)
        return kind is type(expected) and bool(got == expected)
