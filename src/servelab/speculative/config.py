"""What an engine can be told to draft with. Small and frozen: the weights are loaded when the engine is made."""

import os
from dataclasses import dataclass

from servelab.model import Model


@dataclass(frozen=True, slots=True)
class NGram:
    """Look the last tokens up in the request's own text, and draft what followed them there (prompt lookup).

    k: draft tokens at most, in one step. max_ngram, min_ngram: the longest and shortest run of last tokens that is
    looked up, the longest first. adaptive: draft fewer, or none, where few are accepted.
    """

    k: int = 4
    max_ngram: int = 3
    min_ngram: int = 1
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_count("k", self.k)
        check_count("min_ngram", self.min_ngram)
        check_count("max_ngram", self.max_ngram)
        check_flag("adaptive", self.adaptive)
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"expected min_ngram <= max_ngram, got {self.min_ngram} and {self.max_ngram}")


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """Let a smaller model of the same vocabulary draft (Leviathan et al. 2023, Chen et al. 2023).

    model: the draft model. k, adaptive: as for `NGram`.
    """

    model: Model
    k: int = 4
    adaptive: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            raise ValueError(f"expected model as a Model that drafts, got {self.model!r:.60}")
        check_count("k", self.k)
        check_flag("adaptive", self.adaptive)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """Let one trained layer draft from the target's own hidden states (EAGLE, Li et al. 2024).

    path: a head made by `servelab train-draft`, by default the one for the offline model that comes with servelab.
    k, adaptive: as for `NGram`.
    """

    path: str | os.PathLike[str] | None = None
    k: int = 4
    adaptive: bool = False

    def __post_init__(self) -> None:
        if self.path is not None and not isinstance(self.path, (str, os.PathLike)):
            raise ValueError(f"expected path to a draft head, or None, got {self.path!r:.60}")
        check_count("k", self.k)
        check_flag("adaptive", self.adaptive)


Speculation = NGram | DraftModel | DraftHead


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless `value` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected {name} to be an integer >= 1, got {value!r}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be True or False, got {value!r}")
