"""What a learner meets in a notebook: predictions, self-tests, quizzes, progress. Loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servelab.course.code import source
    from servelab.course.goal import goals, progress
    from servelab.course.hardware import machine
    from servelab.course.live import on_gpu
    from servelab.course.picture import show
    from servelab.course.prediction import predict, reveal
    from servelab.course.primer import readiness
    from servelab.course.question import quiz
    from servelab.course.selftest import check, hint
    from servelab.course.watching import watched
    from servelab.course.word import glossary, own_words

_HOMES = {
    "check": "selftest",
    "glossary": "word",
    "goals": "goal",
    "hint": "selftest",
    "machine": "hardware",
    "on_gpu": "live",
    "own_words": "word",
    "predict": "prediction",
    "progress": "goal",
    "quiz": "question",
    "readiness": "primer",
    "reveal": "prediction",
    "show": "picture",
    "source": "code",
    "watched": "watching",
}

__all__ = [
    "check",
    "glossary",
    "goals",
    "hint",
    "machine",
    "on_gpu",
    "own_words",
    "predict",
    "progress",
    "quiz",
    "readiness",
    "reveal",
    "show",
    "source",
    "watched",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
