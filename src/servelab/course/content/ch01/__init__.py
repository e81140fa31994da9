"""Chapter 01, the bottleneck: its goals, its words, and what an answer in one's own words should hold."""

from servelab.course.content.ch01.prediction import PREDICTIONS
from servelab.course.content.ch01.quiz import QUIZ, RETRIEVAL
from servelab.course.content.form import Chapter, GlossaryTerm, Goal, OwnWords
from servelab.translation import _

GLOSSARY = (
    GlossaryTerm("prefill", "预填充", _("The step in which all prompt tokens pass the network together.")),
    GlossaryTerm(
        "decode", "解码", _("A step that takes one token of each running request and brings it one output token.")
    ),
    GlossaryTerm("row", "行", _("One token on its way through the network in one step.")),
    GlossaryTerm(
        "arithmetic intensity",
        "算术强度",
        _("FLOPs that a step does for each byte that it moves."),
        (_("FLOPs per byte"),),
    ),
    GlossaryTerm(
        "ridge point",
        "脊点",
        _("The FLOPs per byte from which on a machine is limited by arithmetic and no longer by memory."),
    ),
    GlossaryTerm("roofline", "屋顶线模型", _("A machine's two ceilings, arithmetic and memory, over FLOPs per byte.")),
    GlossaryTerm("memory-bound", "访存受限", _("Limited by reading memory: faster arithmetic would not help.")),
    GlossaryTerm("batch", "批", _("The requests that one step computes together.")),
    GlossaryTerm(
        "reservation", "预留", _("Memory that a request owns from its start on, for tokens that may never come.")
    ),
    GlossaryTerm(
        "external fragmentation", "外部碎片", _("Free memory in pieces, each too small for the request that waits.")
    ),
    GlossaryTerm("static batching", "静态批处理", _("A batch starts together; the next one waits for its slowest.")),
)

CHAPTER = Chapter(
    number="01",
    title=_("The bottleneck"),
    question=_("Why is decoding slow?"),
    minutes=55,
    difficulty="medium",
    hardware=_("CPU"),
    goals=(
        Goal(
            "01.rows",
            _("Count the rows that an answer sends through the network, with and without a KV cache."),
            ("prediction:01.next-token", "task:01.rows"),
        ),
        Goal(
            "01.roofline",
            _("Compute whether memory or arithmetic limits a step, and say why batching helps and when it stops."),
            ("prediction:01.batch", "quiz:01"),
        ),
        Goal(
            "01.kv-bytes",
            _("Compute the KV bytes of a request, and the number of tokens at which they outweigh the model."),
            ("prediction:01.crossover", "task:01.kv-bytes"),
        ),
        Goal(
            "01.troubles",
            _("Find three kinds of waste in a run: reserved and unused memory, holes, idle seats."),
            ("prediction:01.reserved", "prediction:01.hole", "prediction:01.idle", "task:01.hole", "words:01.slow"),
        ),
    ),
    predictions=PREDICTIONS,
    quizzes=(RETRIEVAL, QUIZ),
    own_words=(
        OwnWords(
            "01.slow",
            _(
                "Without looking back, to a friend who bought a large GPU: why does one user hardly use it, why can it "
                "still serve only a few users, and what has the KV cache to do with both?"
            ),
            (
                _(
                    "One output token needs one read of all weights and very little arithmetic: the step waits for "
                    "memory. Several requests share that read, until KV or arithmetic becomes the limit."
                ),
                _(
                    "The cache saves computing old tokens again, and pays in memory: a fixed number of bytes for each "
                    "prompt token and each output token of each user. That memory limits the number of users."
                ),
                _(
                    "And much of it is wasted: reserved and never used, or free but in holes. And where memory is "
                    "there, a seat stays idle until the slowest of the batch is done."
                ),
            ),
        ),
    ),
    glossary=GLOSSARY,
)
