"""What the chapters ask and say: a notebook names the parts by id, so its source shows no answers."""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, TypeVar

from servelab.course.content.form import Chapter, OwnWords, Prediction, Quiz
from servelab.course.near import unknown
from servelab.translation import _

NUMBERS = tuple(f"{number:02d}" for number in range(10))


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_HasId)


def chapter(number: str) -> Chapter:
    """Return the content of a chapter such as "01"; ValueError when there is none."""
    if not isinstance(number, str):
        raise ValueError(_("expected a chapter as text, such as '01', got {number!r:.60}").format(number=number))
    name = f"{__name__}.ch{number}"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(unknown("chapter", number, [one.number for one in chapters()])) from None
    content: Chapter = module.CHAPTER
    return content


def chapters() -> list[Chapter]:
    """Return the chapters that exist, in order."""
    names = {number: f"{__name__}.ch{number}" for number in NUMBERS}
    return [chapter(number) for number, name in names.items() if name in sys.modules or find_spec(name)]


def prediction(name: str) -> Prediction:
    """Return the prediction with this id; ValueError names those that are near."""
    return _part(name, "prediction", lambda content: content.predictions)


def quiz(name: str) -> Quiz:
    """Return the quiz with this id; ValueError names those that are near."""
    return _part(name, "quiz", lambda content: content.quizzes)


def own_words(name: str) -> OwnWords:
    """Return the question with this id; ValueError names those that are near."""
    return _part(name, "own words", lambda content: content.own_words)


def _part(name: str, kind: str, parts: Callable[[Chapter], Iterable[T]]) -> T:
    if not isinstance(name, str):
        raise ValueError(_("expected an id as text, such as '01.kv-curve', got {name!r:.60}").format(name=name))
    found = {part.id: part for part in parts(chapter(name[:2]))}
    if name not in found:
        raise ValueError(unknown(kind, name, list(found)))
    return found[name]
