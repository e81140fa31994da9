"""The forms that a chapter's content is written in: questions, options, explanations, goals, words.

A content file (``content/chNN.py``) holds one ``CHAPTER = Chapter(...)``. A notebook names things by id
(``predict("01.kv-curve")``), so its source shows no answers. Every sentence goes through ``_``; numbers are
computed (``_("... {bytes:,} bytes").format(bytes=...)``). Text is Markdown: paragraphs, lists, tables,
``**bold**`` and `` `code` ``; no HTML, no LaTeX. Each form checks itself and raises ValueError at import.

A chapter in small::

    from servelab.course.content.form import Chapter, Choice, Goal, Prediction, Quiz, QuizItem
    from servelab.translation import _

    CHAPTER = Chapter(
        number="01",
        title=_("The bottleneck"),
        question=_("Why is one token slow?"),
        minutes=60,
        difficulty="easy",
        hardware=_("CPU"),
        goals=(Goal("01.curve", _("Say why decoding without a cache is quadratic."), ("prediction:01.kv-curve",)),),
        predictions=(
            Prediction(
                "01.kv-curve",
                _("64 tokens take 2 s with a cache. How many seconds without one?"),
                _("Without a cache, token {tokens} recomputes the {tokens} tokens before it."),
                unit="s",
            ),
        ),
        quizzes=(
            Quiz(
                "01",
                _("Quiz"),
                (
                    QuizItem(
                        "twice-the-context",
                        _("The context doubles. What happens to the KV bytes of a request?"),
                        (
                            Choice("double", _("They double."), _("Each token stores a K and a V."), right=True),
                            Choice("square", _("They grow fourfold."), _("That is the work, not the storage.")),
                        ),
                        new_numbers=True,
                    ),
                ),
            ),
        ),
    )
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Difficulty = Literal["easy", "medium", "hard"]
How = Literal["measured", "calculated", "counted"]

_CHAPTER = re.compile(r"\d\d")
_ID = re.compile(r"(\d\d)\.[a-z0-9]+(-[a-z0-9]+)*")
_EVIDENCE = re.compile(r"(prediction|task|words):(\d\d|lab\d\d)\.[a-z0-9-]+|quiz:\d\d(\.[a-z0-9-]+)?|readiness")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_id(name: str, kind: str) -> None:
    _require(_ID.fullmatch(name) is not None, f"{kind}: expected an id such as '01.kv-curve', got {name!r}")


def _require_unique(names: Iterable[str], kind: str) -> None:
    seen: set[str] = set()
    for name in names:
        _require(name not in seen, f"{kind} {name!r} is defined twice")
        seen.add(name)


@dataclass(frozen=True)
class Choice:
    """One option. `why` is shown after the learner commits, whether they chose it or not.

    ``Choice("double", _("They double."), _("Each token stores one K and one V a layer."), right=True)``
    """

    key: str
    text: str
    why: str
    right: bool = False


def _check_choices(choices: tuple[Choice, ...], owner: str, right: int | None) -> None:
    _require(len(choices) >= 2, f"{owner}: expected at least two choices, got {len(choices)}")
    _require_unique((choice.key for choice in choices), f"{owner}: choice")
    for choice in choices:
        _require(bool(choice.why.strip()), f"{owner}: choice {choice.key!r} needs a `why`")
    count = sum(choice.right for choice in choices)
    if right is not None:
        _require(count == right, f"{owner}: expected exactly {right} right choice, got {count}")
    else:
        _require(count <= 1, f"{owner}: expected at most one right choice, got {count}")


@dataclass(frozen=True)
class Prediction:
    """What the learner commits before a result: a number, or one of `choices`.

    `explanation` explains the gap. It may hold {actual} and any placeholder that `reveal` is given as a dict:
    ``reveal("01.kv-curve", {"actual": seconds, "tokens": 64}, figure)``. Format specifications work: {tokens:,}.
    The card itself says what was predicted, what came out and the ratio, so `explanation` need not.

    Number: `unit` stands after the field; `low` and `high` bound what may be typed (a count is not negative).
    `too_low` / `too_high` say what somebody who was off by more than a factor `close` probably thought; they may
    also hold {predicted} and {ratio} (actual / predicted).

    Choice: the right key is, in this order: the key given to `reveal`; what `decide(values)` returns for the dict
    given to `reveal`; the choice marked `right`. Each choice's `why` may hold the same placeholders. ::

        Prediction(
            "02.fits", _("Which pool takes the request of 9?"), _("The largest hole is {hole} slots."),
            choices=(Choice("contiguous", _("The contiguous one"), _("Its holes are apart.")),
                     Choice("paged", _("The paged one"), _("Any free block will do."), right=True)),
            how="counted",
        )
    """

    id: str
    question: str
    explanation: str
    unit: str = ""
    choices: tuple[Choice, ...] = ()
    how: How = "measured"
    low: float | None = 0
    high: float | None = None
    close: float = 1.25
    too_low: str = ""
    too_high: str = ""
    decide: Callable[[Mapping[str, Any]], str] | None = None

    def __post_init__(self) -> None:
        _require_id(self.id, "Prediction")
        _require(bool(self.explanation.strip()), f"Prediction {self.id}: needs an explanation of the gap")
        _require(self.close > 1, f"Prediction {self.id}: expected close > 1, got {self.close}")
        if self.choices:
            _check_choices(self.choices, f"Prediction {self.id}", None)

    def choice(self, key: str) -> Choice:
        """Return the choice with this key; ValueError names the keys there are."""
        for choice in self.choices:
            if choice.key == key:
                return choice
        raise ValueError(f"{self.id}: expected one of {[c.key for c in self.choices]}, got {key!r}")


@dataclass(frozen=True)
class QuizItem:
    """One question with exactly one right choice.

    `new_numbers` marks an item that changes a number, a model or a load: at least half of a chapter's own quiz
    must. `id` is short ("twice-the-context") and unique within its quiz.
    """

    id: str
    question: str
    choices: tuple[Choice, ...]
    new_numbers: bool = False

    def __post_init__(self) -> None:
        _check_choices(self.choices, f"QuizItem {self.id}", 1)

    @property
    def right(self) -> Choice:
        """The right choice."""
        return next(choice for choice in self.choices if choice.right)


@dataclass(frozen=True)
class Quiz:
    """Some questions: ``Quiz("01", ...)`` is the chapter's own, ``Quiz("01.retrieval", ...)`` looks back.

    In the chapter's own quiz at least half of the items must have `new_numbers`.
    """

    id: str
    title: str
    items: tuple[QuizItem, ...]

    def __post_init__(self) -> None:
        if not _CHAPTER.fullmatch(self.id):
            _require_id(self.id, "Quiz")
        _require(bool(self.items), f"Quiz {self.id}: expected at least one item")
        _require_unique((item.id for item in self.items), f"Quiz {self.id}: item")
        if _CHAPTER.fullmatch(self.id):
            fresh = sum(item.new_numbers for item in self.items)
            _require(
                2 * fresh >= len(self.items),
                f"Quiz {self.id}: half of the items must have new_numbers, got {fresh} of {len(self.items)}",
            )


@dataclass(frozen=True)
class OwnWords:
    """A question to answer in one's own words, and three points to mark the answer by.

    ``OwnWords("01.three-troubles", _("Why does one card serve so few people?"), (_("..."), _("..."), _("...")))``
    """

    id: str
    question: str
    points: tuple[str, str, str]

    def __post_init__(self) -> None:
        _require_id(self.id, "OwnWords")
        _require(len(self.points) == 3, f"OwnWords {self.id}: expected three points, got {len(self.points)}")


@dataclass(frozen=True)
class Goal:
    """What a learner can do at the end, and the evidence that ticks it.

    Evidence: "prediction:01.kv-curve" (committed), "task:01.kv-bytes" (passed), "quiz:01" (all answered),
    "words:01.three-troubles" (points shown), "readiness" (all six answered). All of it is needed for the tick.

    ``Goal("01.curve", _("Say why decoding without a cache is quadratic."), ("prediction:01.kv-curve", "quiz:01"))``
    """

    id: str
    text: str
    evidence: tuple[str, ...]

    def __post_init__(self) -> None:
        _require_id(self.id, "Goal")
        _require(bool(self.evidence), f"Goal {self.id}: expected some evidence, got none")
        for one in self.evidence:
            _require(_EVIDENCE.fullmatch(one) is not None, f"Goal {self.id}: evidence {one!r} has no known form")


@dataclass(frozen=True)
class GlossaryTerm:
    """A word of the field: English, Chinese, and what it means in plain words; `also` are other names.

    ``GlossaryTerm("block table", "块表", _("The list that says which physical block holds which tokens."))``
    """

    term: str
    chinese: str
    plain: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Primer:
    """Ten minutes for somebody who missed a readiness question. `body` is Markdown, with tables if it helps.

    ``Primer("00.attention", _("Attention on three tokens"), _("..."))``
    """

    id: str
    title: str
    body: str
    minutes: int = 10

    def __post_init__(self) -> None:
        _require_id(self.id, "Primer")


@dataclass(frozen=True)
class ReadinessItem:
    """A question of the readiness check; missing it offers the primer with id `primer`.

    ``ReadinessItem(QuizItem("old-keys", _("..."), (...)), primer="00.attention")``
    """

    item: QuizItem
    primer: str


@dataclass(frozen=True)
class Chapter:
    """Everything a chapter's notebook names by id. `difficulty` is "easy", "medium" or "hard"."""

    number: str
    title: str
    question: str
    minutes: int
    difficulty: Difficulty
    hardware: str
    goals: tuple[Goal, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    quizzes: tuple[Quiz, ...] = ()
    own_words: tuple[OwnWords, ...] = ()
    glossary: tuple[GlossaryTerm, ...] = ()
    primers: tuple[Primer, ...] = ()
    readiness: tuple[ReadinessItem, ...] = ()

    def __post_init__(self) -> None:
        _require(_CHAPTER.fullmatch(self.number) is not None, f"Chapter: expected '01', got {self.number!r}")
        for kind, ids in (
            ("goal", [g.id for g in self.goals]),
            ("prediction", [p.id for p in self.predictions]),
            ("quiz", [q.id for q in self.quizzes]),
            ("own words", [w.id for w in self.own_words]),
            ("primer", [p.id for p in self.primers]),
            ("readiness question", [r.item.id for r in self.readiness]),
        ):
            _require_unique(ids, kind)
            if kind != "readiness question":
                for name in ids:
                    _require(name[:2] == self.number, f"{kind} {name!r} is not of chapter {self.number}")
        primers = {primer.id for primer in self.primers}
        for ready in self.readiness:
            _require(ready.primer in primers, f"readiness {ready.item.id!r}: no primer {ready.primer!r}")
