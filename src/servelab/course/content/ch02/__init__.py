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
            _("Compute how many requests a pool holds, with a reservation and with blocks."),
            ("prediction:02.capacity", "task:02.blocks"),
        ),
        Goal(
            "02.waste",
            _("Compute what the last blocks waste, choose a block size, and say when paging wins nothing."),
            ("prediction:02.block-size", "task:02.waste", "words:02.paging"),
        ),
    ),
    predictions=PREDICTIONS,
    quizzes=(RETRIEVAL, QUIZ),
    own_words=(
        OwnWords(
            "02.paging",
            _(
                "Without looking back: why could one card serve only a few people, and why does the same card serve "
                "several times more with a block table? What does it cost, and when does it win nothing?"
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
                    "The mathematics of attention stays; its reads go through the table. No gain where lengths are "
                    "known and equal, where the reservation gets used, or where memory is not what is short."
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
        GlossaryTerm("capacity", "容量", _("How many requests a KV pool holds at the same time.")),
    ),
)
