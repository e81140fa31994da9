"""Chapter 00, start here: the readiness check with its primers, and what one answer of a real model shows."""

from servelab.course.content.ch00.primer import PRIMERS
from servelab.course.content.ch00.question import PREDICTIONS, QUIZ
from servelab.course.content.ch00.readiness import READINESS
from servelab.course.content.form import Chapter, GlossaryTerm, Goal, OwnWords
from servelab.translation import _

GLOSSARY = (
    GlossaryTerm("token", "词元", _("A piece of text from the model's fixed list; what it reads and writes.")),
    GlossaryTerm("prompt token", "提示词元", _("A token that was given to the model.")),
    GlossaryTerm("output token", "输出词元", _("A token that the model wrote.")),
    GlossaryTerm(
        "KV cache", "KV 缓存", _("The keys and values of all earlier tokens, kept so that they are computed once.")
    ),
    GlossaryTerm("query head", "查询头", _("One of several attentions side by side; it asks with its own query.")),
    GlossaryTerm(
        "KV head", "KV 头", _("One stored key and value a token and layer; several query heads may share it.")
    ),
    GlossaryTerm("trace", "运行轨迹", _("What the engine decided in each step, kept so that it can be replayed.")),
    GlossaryTerm("TTFT", "首词元延迟", _("Time to first token: from the request's arrival to its first output token.")),
    GlossaryTerm("TPOT", "每输出词元时间", _("Time per output token after the first, averaged over the answer.")),
    GlossaryTerm("bandwidth", "带宽", _("Bytes that a machine reads from its memory in a second.")),
    GlossaryTerm("FLOP/s", "每秒浮点运算次数", _("Multiplications and additions that a machine does in a second.")),
    GlossaryTerm("engine", "推理引擎", _("The program that takes requests, schedules them and runs the model.")),
    GlossaryTerm("request", "请求", _("One prompt with its settings, from arrival to the last output token.")),
)

CHAPTER = Chapter(
    number="00",
    title=_("Start here"),
    question=_("Can I start, and where?"),
    minutes=25,
    difficulty="easy",
    hardware=_("CPU"),
    goals=(
        Goal("00.runs", _("Have a real model answer on your own machine."), ("prediction:00.first-token",)),
        Goal(
            "00.count",
            _("Count prompt tokens and output tokens, and say which of them are stored."),
            ("prediction:00.tokens", "task:00.stored"),
        ),
        Goal("00.ready", _("Say what you need to know before chapter 01, and where it is explained."), ("readiness",)),
        Goal(
            "00.wait",
            _("Tell the wait for the first output token from the wait for the later ones."),
            ("prediction:00.longer-prompt", "prediction:00.crossover", "quiz:00", "words:00.two-waits"),
        ),
    ),
    predictions=PREDICTIONS,
    quizzes=(QUIZ,),
    own_words=(
        OwnWords(
            "00.two-waits",
            _("A friend says: “The chatbot is slow.” Which two questions do you ask, and why?"),
            (
                _("Is it slow to begin? Then the prompt is long or the request waits for its turn (TTFT)."),
                _("Is it slow while it writes? Then each output token takes long (TPOT)."),
                _("They have different causes: many tokens in one step, against many steps of one token."),
            ),
        ),
    ),
    glossary=GLOSSARY,
    primers=PRIMERS,
    readiness=READINESS,
)
