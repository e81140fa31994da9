"""The predictions and the quiz of chapter 00: one answer of a real model."""

from servelab.costs import Roofline, decode_step_seconds
from servelab.course.content.ch00.number import SMOLLM2
from servelab.course.content.form import Choice, Prediction, Quiz, QuizItem
from servelab.translation import _

# A request of the quiz.
TTFT_MS, TPOT_MS, OUTPUT_TOKENS = 600, 30, 41

QUIZ_READS, QUIZ_COMPUTES = 100e9, 500e9
PREDICTIONS = (
    Prediction(
        "00.tokens",
        _(
            "A model does not read letters or words, it reads **tokens**: pieces from a fixed list. "
            "**How many tokens is the sentence “Unbelievably, the cache is full!” for SmolLM2?**"
        ),
        _(
            "Frequent words are one token, with the space before them. Rare ones fall into several: the first word "
            "alone takes {first}. The list has {vocabulary:,} pieces, so about one token a word is a good guess for "
            "plain English, and far off for rare words, code and other languages."
        ),
        unit=_("tokens"),
        how="counted",
        low=1,
        high=60,
        close=1.15,
        too_low=_("You may have counted words. Punctuation and rare words take tokens of their own."),
        too_high=_("You may have counted letters or syllables. Frequent words are one token."),
    ),
    Prediction(
        "00.first-token",
        _(
            "A request has {prompt} prompt tokens and gets {output} output tokens. The first output token comes when "
            "all prompt tokens have passed the network. Every later one needs one more step. **How many times longer "
            "do you wait for the first output token than for each later one?**"
        ).format(prompt=192, output=8),
        _(
            "The first output token took {ttft_ms:,.0f} ms (TTFT), each later one {tpot_ms:,.0f} ms (TPOT). The first "
            "step computes {prompt} prompt tokens, a later one computes 1 token. Yet the first wait is {actual:.1f} "
            "times as long, not {prompt} times. A large part of a step costs the same for one token as for "
            "many; reading all the weights is in it. Chapter 01 takes a step apart."
        ),
        unit=_("times"),
        how="measured",
        low=0,
        high=10000,
        close=1.6,
        too_high=_("The first step does {prompt} times the work. Is work what a step of one token waits for?"),
        too_low=_("1 token and {prompt} tokens in a step are not the same: at some point arithmetic counts."),
    ),
    Prediction(
        "00.longer-prompt",
        _(
            "You go from {short} to {long} prompt tokens, {times} times as many. The number of output tokens stays. "
            "**How many times as long does each later output token take (TPOT)?**"
        ).format(short=12, long=480, times=480 // 12),
        _(
            "From {short} to {long} prompt tokens TPOT became {actual:.1f} times as long, TTFT {growth:.0f} times. The "
            "old tokens' K and V are kept, so a later step computes one token, however long the prompt was. It only "
            "reads more K and V.\n\n"
            "Now the other end. With {short} prompt tokens TTFT was {short_ms:,.0f} ms, with {low} it was "
            "{low_ms:,.0f} ms, and one later step took {low_tpot_ms:,.0f} ms. Even a short prompt needs one whole "
            "step, and a step reads all weights. So a shorter prompt wins less and less."
        ),
        unit=_("times"),
        how="measured",
        low=0,
        high=10000,
        close=1.5,
        too_high=_("You may have let each step compute the prompt again. Its K and V are kept."),
        too_low=_("A later step computes one token, but that token looks at more K and V than before."),
    ),
    Prediction(
        "00.crossover",
        _(
            "Take {long} prompt tokens, and read TTFT and TPOT off the curve. **At how many output tokens does the "
            "writing take as long as the first wait?**"
        ).format(long=480),
        _(
            "1 + {ttft_ms:,.0f} ms / {tpot_ms:,.0f} ms = {actual:.1f} output tokens. With {low} prompt tokens it is "
            "{low_tokens:.1f}. So the same remedy can be worth a lot for one user and next to nothing for another."
        ),
        unit=_("output tokens"),
        how="measured",
        low=1,
        high=10000,
        close=1.3,
        too_high=_("Both axes are logarithmic: read the values at the marks, then divide TTFT by TPOT."),
        too_low=_("Both axes are logarithmic: read the values at the marks, then divide TTFT by TPOT."),
    ),
)


def _step_ms(context: int) -> float:
    """A decode step of SmolLM2 at 16 bit on the quiz's machine, in ms."""
    machine = Roofline(name="", flops_per_s=QUIZ_COMPUTES, bandwidth_bytes_per_s=QUIZ_READS)
    return 1e3 * decode_step_seconds(SMOLLM2, machine, 1, context)


QUIZ = Quiz(
    "00",
    _("Quiz: one answer of a real model"),
    (
        QuizItem(
            "stored-at-the-end",
            _("A request has 40 prompt tokens and gets 10 output tokens. Whose K and V are stored when it ends?"),
            (
                Choice(
                    "outputs",
                    _("Those of the 10 output tokens"),
                    _("The prompt is looked at by every later token. Its K and V are kept first of all."),
                ),
                Choice(
                    "but-one",
                    _("Those of 49 tokens: 40 prompt tokens and 9 output tokens"),
                    _("The last output token never passes the network: nothing comes after it. Count steps and see."),
                    right=True,
                ),
                Choice(
                    "all",
                    _("Those of all 50 tokens"),
                    _("K and V are made when a token passes the network. The 10th output token has no need to."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "long-prompt",
            _(
                "A request goes from 200 to 2,000 prompt tokens and still gets 100 output tokens. Which time grows by "
                "the larger factor?"
            ),
            (
                Choice(
                    "ttft",
                    _("The time to the first output token"),
                    _("Ten times the prompt tokens have to pass the network before anything can be said."),
                    right=True,
                ),
                Choice(
                    "tpot",
                    _("The time for each later output token"),
                    _("It grows a little, since more K and V are read. It still computes one token."),
                ),
                Choice(
                    "neither",
                    _("Neither grows: the model has the same size"),
                    _("The weights stay. The tokens that pass through them do not."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "faster-arithmetic",
            _(
                "A machine reads {reads:.0f} GB/s and computes {computes:.0f} GFLOP/s. A step of SmolLM2, at 16 bit "
                "(2 bytes a weight), reads {mb:.0f} MB of weights and computes one token, about {gflop:.2f} GFLOP. "
                "That takes {ms:.1f} ms at least. The machine now gets twice the GFLOP/s. How long does the step "
                "take at least?"
            ).format(
                reads=QUIZ_READS / 1e9,
                computes=QUIZ_COMPUTES / 1e9,
                mb=2 * SMOLLM2.num_parameters / 1e6,
                gflop=2 * SMOLLM2.num_parameters / 1e9,
                ms=_step_ms(1),
            ),
            (
                Choice(
                    "half",
                    _("{ms:.1f} ms").format(ms=_step_ms(1) / 2),
                    _("So it would be if the step waited for the arithmetic. It waits for the reading."),
                ),
                Choice(
                    "same",
                    _("{ms:.1f} ms").format(ms=_step_ms(1)),
                    _(
                        "Reading {mb:.0f} MB takes as long as before. The arithmetic took {before:.1f} ms and now "
                        "takes {after:.1f} ms, both hidden behind the reading."
                    ).format(
                        mb=2 * SMOLLM2.num_parameters / 1e6,
                        before=2e3 * SMOLLM2.num_parameters / QUIZ_COMPUTES,
                        after=1e3 * SMOLLM2.num_parameters / QUIZ_COMPUTES,
                    ),
                    right=True,
                ),
                Choice(
                    "between",
                    _("{ms:.1f} ms").format(ms=0.75 * _step_ms(1)),
                    _("Half reading, half arithmetic? The two overlap, and only the longer one is seen."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "whole-wait",
            _("TTFT is {ttft} ms, TPOT is {tpot} ms, and {n} output tokens come. How long is the whole wait?").format(
                ttft=TTFT_MS, tpot=TPOT_MS, n=OUTPUT_TOKENS
            ),
            (
                Choice(
                    "each",
                    _("{ms:,} ms").format(ms=OUTPUT_TOKENS * TPOT_MS),
                    _("This counts the writing as if the first output token came after one TPOT. It comes after TTFT."),
                ),
                Choice(
                    "one-more",
                    _("{ms:,} ms").format(ms=TTFT_MS + OUTPUT_TOKENS * TPOT_MS),
                    _("The first output token is there when TTFT ends. Only the {n} after it take a TPOT each.").format(
                        n=OUTPUT_TOKENS - 1
                    ),
                ),
                Choice(
                    "whole",
                    _("{ms:,} ms").format(ms=TTFT_MS + (OUTPUT_TOKENS - 1) * TPOT_MS),
                    _("{ttft} ms + ({n} - 1) × {tpot} ms.").format(ttft=TTFT_MS, n=OUTPUT_TOKENS, tpot=TPOT_MS),
                    right=True,
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "prediction",
            _("Why does this course ask you for a number before it shows one?"),
            (
                Choice(
                    "grade",
                    _("To grade you"),
                    _("Nobody sees your predictions. They stay on this machine, and a skip costs nothing."),
                ),
                Choice(
                    "gap",
                    _("Because the gap between what you thought and what came out is what you learn from"),
                    _("A result without an expectation is easily nodded at. A wrong expectation is remembered."),
                    right=True,
                ),
                Choice(
                    "slow",
                    _("To give the machine time to measure"),
                    _("The measurement is done in any case. Only its result is folded."),
                ),
            ),
        ),
    ),
)
