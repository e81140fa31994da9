"""Chapter 02, PagedAttention: its goals, its words, and what an answer in one's own words should hold."""

from servelab.course.content.ch02.prediction import PREDICTIONS
from servelab.course.content.ch02.quiz import QUIZ, RETRIEVAL
from servelab.course.content.form import Chapter, GlossaryTerm, Goal, OwnWords
from servelab.translation import _

CHAPTER = Chapter(
    number="02",
    title=_("PagedAttention"),
    question=_("How do many requests share one memory?"),
    minutes=60,
    difficulty="medium",
    hardware=_("CPU"),
    goals=(
        Goal(
            "02.table",
            _("Say by hand which block and which slot take a request's next token."),
            ("prediction:02.ninth", "task:02.slot"),
        ),
        Goal(
            "02.same",
            _("Say what scattered blocks do to the output tokens, and what an operating system has that this has not."),
            ("prediction:02.same-tokens", "quiz:02"),
        ),
        Goal(
            "02.capacity",
            _(
                "Compute how many requests a pool holds and what their last blocks waste, and say when paging wins "
                "nothing."
            ),
            ("prediction:02.capacity", "prediction:02.waste", "words:02.paging"),
        ),
        Goal(
            "02.share",
            _("Say which blocks a new request takes over, and where two answers to one prompt put their own tokens."),
            ("prediction:02.hit", "prediction:02.copy", "task:02.match"),
        ),
    ),
    predictions=PREDICTIONS,
    quizzes=(RETRIEVAL, QUIZ),
    own_words=(
        OwnWords(
            "02.paging",
            _(
                "Without looking back: why could one card serve only a few people, and why does the same card serve "
                "several times more with a block table? What does it cost, what can two requests share, and when does "
                "it win nothing?"
            ),
            (
                _(
                    "Before: one unbroken range a request, as long as it might ever become, because nobody knows how "
                    "many output tokens will come. Most of it stayed empty."
                ),
                _(
                    "Now: blocks of fixed size, handed out when a token needs one, found through a table. Any free "
                    "block will do; a request wastes less than one block."
                ),
                _(
                    "The mathematics of attention stays; its reads go through the table. Several tables may name one "
                    "block, so equal beginnings are stored once. No gain where lengths are known and equal, where the "
                    "reservation gets used, or where memory is not what is short."
                ),
            ),
        ),
    ),
    glossary=(
        GlossaryTerm(
            "PagedAttention",
            "分页注意力",
            _("Attention that finds keys and values through a block table, so that they may lie anywhere."),
        ),
        GlossaryTerm("slot", "槽位", _("The place of one token's K and V, over all layers.")),
        GlossaryTerm("block", "块", _("A fixed number of slots side by side, handed out together."), (_("page"),)),
        GlossaryTerm(
            "block table",
            "块表",
            _("A request's list of blocks: entry i says which physical block holds its logical block i."),
            (_("page table"),),
        ),
        GlossaryTerm("logical block", "逻辑块", _("The block as the request counts: position // block size.")),
        GlossaryTerm(
            "physical block", "物理块", _("The block as the pool counts: where the bytes are."), (_("page frame"),)
        ),
        GlossaryTerm(
            "internal fragmentation",
            "内部碎片",
            _("Slots that a request owns and never uses; with blocks, the end of its last one."),
        ),
        GlossaryTerm(
            "kernel",
            "内核函数",
            _("A function that a GPU runs: many programs side by side, each for a part of the result."),
        ),
        GlossaryTerm(
            "program id", "程序编号", _("Which of a kernel's programs this is, and so which part it computes.")
        ),
        GlossaryTerm("capacity", "容量", _("How many requests a KV pool holds at the same time.")),
        GlossaryTerm(
            "reference count",
            "引用计数",
            _("How many block tables name a block. At 0 the pool may hand it out again."),
        ),
        GlossaryTerm(
            "prefix caching",
            "前缀缓存",
            _(
                "Keeping the full blocks of computed prompts, so that a request that begins with the same tokens takes "
                "them over instead of computing them."
            ),
            (_("prefix sharing"),),
        ),
        GlossaryTerm(
            "copy-on-write",
            "写时复制",
            _("A block that several tables name is copied when one of their requests is to write into it, not before."),
        ),
        GlossaryTerm(
            "eviction",
            "驱逐",
            _("Forgetting what a kept block without an owner holds, because the pool hands it out again."),
        ),
    ),
)
