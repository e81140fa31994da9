"""A small chapter 99 and its task, for tests: put into `sys.modules` where the course looks for chapters."""

import types

from servelab.course.content.form import (
    Chapter,
    Choice,
    GlossaryTerm,
    Goal,
    OwnWords,
    Prediction,
    Primer,
    Quiz,
    QuizItem,
    ReadinessItem,
)
from servelab.course.tasks.task import Case, Mistake, Task, draw

ROUND_DOWN = "The tokens that do not fill a block need a block too."
ONE_TOO_MANY = "Look at a length that fills its last block exactly."

PREDICTIONS = (
    Prediction(
        "99.seconds",
        "64 tokens take **2 s** with a cache. How many seconds does the same prompt take without one?",
        "SECRET-WHY: without a cache, token {tokens} computes the {tokens} tokens before it again.",
        unit="s",
        too_low="SECRET-LOW: you predicted {predicted}, the work grows with the square.",
        too_high="SECRET-HIGH: {ratio:.2f}.",
        how="counted",
    ),
    Prediction(
        "99.pool",
        "28 slots: 7, 2, 7 and 7 are placed, the first and the third 7 are freed. Which pool takes a request of 9?",
        "SECRET-WHY: the largest hole is {hole} slots of {free} that are free.",
        choices=(
            Choice("contiguous", "The contiguous one: 19 slots are free", "SECRET-A: they lie in holes of {hole}."),
            Choice("paged", "The paged one", "SECRET-B: any free block will do.", right=True),
            Choice("none", "Neither of them", "SECRET-C: 19 slots are free."),
        ),
        how="calculated",
    ),
    Prediction(
        "99.wins",
        "Which is faster?",
        "By {ratio}.",
        choices=(Choice("a", "A", "why a"), Choice("b", "B", "why b")),
        decide=lambda values: "a" if values["ratio"] > 1 else "b",
    ),
)

QUIZ = Quiz(
    "99",
    "Quiz: the bottleneck",
    (
        QuizItem(
            "context",
            "The context doubles. What happens to the KV bytes of one request?",
            (
                Choice("double", "They double.", "SECRET-1: each token stores one K and one V a layer.", right=True),
                Choice("square", "They grow fourfold.", "SECRET-2: that is the work, not the storage."),
                Choice("same", "They stay.", "SECRET-3: nothing is thrown away."),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "heads",
            "The model has 8 KV heads instead of 4. And now?",
            (
                Choice("double", "Twice the bytes.", "SECRET-4: bytes are proportional to the KV heads.", right=True),
                Choice("half", "Half the bytes.", "SECRET-5: more heads never store less."),
            ),
        ),
    ),
)

CHAPTER = Chapter(
    number="99",
    title="The bottleneck",
    question="Why is one token slow?",
    minutes=10,
    difficulty="easy",
    hardware="CPU",
    goals=(
        Goal("99.curve", "Say why decoding without a cache is quadratic.", ("prediction:99.seconds", "quiz:99")),
        Goal("99.blocks", "Compute the blocks of a request.", ("task:99.blocks",)),
        Goal("99.words", "Explain the three troubles to a colleague.", ("words:99.troubles",)),
    ),
    predictions=PREDICTIONS,
    quizzes=(QUIZ,),
    own_words=(
        OwnWords(
            "99.troubles",
            "Why could one card serve only a few people before, and dozens now?",
            ("SECRET-P1: memory was reserved.", "SECRET-P2: it was in holes.", "SECRET-P3: slots were idle."),
        ),
    ),
    glossary=(
        GlossaryTerm("KV cache", "KV 缓存", "K and V of earlier tokens, kept so that they are not computed again."),
        GlossaryTerm("block table", "块表", "Which block holds which tokens of a request.", ("page table",)),
    ),
)


READY = Chapter(
    number="00",
    title="Start here",
    question="Are you ready?",
    minutes=10,
    difficulty="easy",
    hardware="CPU",
    primers=(
        Primer("00.attention", "Attention on three tokens", "| token | K |\n|---|---|\n| a | 1 |\n\nOld K stay."),
        Primer("00.bytes", "Bandwidth against FLOPs", "A byte is read once."),
    ),
    readiness=(
        ReadinessItem(
            QuizItem(
                "old-keys",
                "Does the K of token 1 change when token 5 comes?",
                (
                    Choice("no", "No", "SECRET-R1: it depends on tokens 0 and 1 only.", right=True),
                    Choice("yes", "Yes", "SECRET-R2: a later token is not seen."),
                ),
            ),
            "00.attention",
        ),
        ReadinessItem(
            QuizItem(
                "bandwidth",
                "Is reading or computing the limit at batch 1?",
                (Choice("read", "Reading", "SECRET-R3", right=True), Choice("compute", "Computing", "SECRET-R4")),
            ),
            "00.bytes",
        ),
    ),
)


def blocks(num_tokens: int, block_size: int) -> int:
    """The right answer."""
    return -(-num_tokens // block_size)


def _hidden(seed: int) -> list[Case]:
    rng = draw(seed, "99.blocks")
    return [Case((n, 4), blocks(n, 4)) for n in rng.sample(range(9, 200), 6)]


BLOCKS = Task(
    id="99.blocks",
    title="Blocks for a request",
    kind="fill",
    points=2,
    minutes=5,
    difficulty="easy",
    call="blocks(num_tokens, block_size)",
    visible=lambda seed: [Case((7, 4), 2), Case((8, 4), 2)],
    hidden=_hidden,
    mistakes=(
        Mistake("rounds down", lambda case, got: got == case.arguments[0] // case.arguments[1], ROUND_DOWN),
        Mistake("one too many", lambda case, got: got == case.arguments[0] // case.arguments[1] + 1, ONE_TOO_MANY),
    ),
    hints=("How many blocks do 9 tokens need?", "blocks x size >= tokens", "divide; if something is left, add one"),
    seconds=0.5,
)

CAPACITY = Task(
    id="99.capacity",
    title="Requests that fit",
    kind="measure",
    points=1,
    minutes=3,
    difficulty="easy",
    call="capacity",
    visible=lambda seed: [Case((), 76)],
    hints=("a?", "b", "c"),
    answer="value",
)

MODULES = {
    "servelab.course.content.ch00": types.SimpleNamespace(CHAPTER=READY),
    "servelab.course.content.ch99": types.SimpleNamespace(CHAPTER=CHAPTER),
    "servelab.course.tasks.ch99": types.SimpleNamespace(TASKS=(BLOCKS, CAPACITY)),
}
