"""The predictions and the quiz of chapter 00: one answer of a real model."""

from servelab.costs import Roofline, decode_step_seconds
from servelab.course.content.ch00.number import COMPUTES, READS, SMOLLM2
from servelab.course.content.form import Choice, Prediction, Quiz, QuizItem
from servelab.translation import _

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
            "A prompt of {prompt} tokens, an answer of {output} tokens. The first output token comes when the whole "
            "prompt has passed the network; every later one needs one more step. **How many times longer do you wait "
            "for the first output token than for each later one?**"
        ).format(prompt=192, output=16),
        _(
            "The first output token took {ttft_ms:,.0f} ms (TTFT), each later one {tpot_ms:,.0f} ms (TPOT). The first "
            "step computes {prompt} tokens, a later one computes 1. Yet the wait is not {prompt} times as long: a "
            "step reads all weights once, however many tokens share them. That is what chapter 01 is about."
        ),
        unit=_("times"),
        how="measured",
        low=0,
        high=10000,
        close=1.6,
        too_high=_("The first step does {prompt} times the work. Is work what a step of one token waits for?"),
        too_low=_("One token and {prompt} tokens in a step are not the same: at some point arithmetic counts."),
    ),
)


def _step_ms(context: int) -> float:
    """A decode step of SmolLM2 at 16 bit on the machine of the readiness question, in ms."""
    machine = Roofline(name="", flops_per_s=COMPUTES, bandwidth_bytes_per_s=READS)
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
            _("The prompt grows from 200 to 2,000 tokens, the answer stays at 100 tokens. What grows most?"),
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
                    _("Neither: the model has the same size"),
                    _("The weights stay. The tokens that pass through them do not."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "faster-arithmetic",
            _(
                "The machine of the readiness check gets twice the FLOP/s and the same bandwidth. One step of one "
                "token of SmolLM2 took {ms:.1f} ms. How long does it take now?"
            ).format(ms=_step_ms(1)),
            (
                Choice(
                    "half",
                    _("{ms:.1f} ms").format(ms=_step_ms(1) / 2),
                    _("It would, were it the arithmetic that the step waits for."),
                ),
                Choice(
                    "same",
                    _("{ms:.1f} ms").format(ms=_step_ms(1)),
                    _("It reads {mb:.0f} MB of weights, and that takes as long as before.").format(
                        mb=2 * SMOLLM2.num_parameters / 1e6
                    ),
                    right=True,
                ),
                Choice(
                    "between",
                    _("{ms:.1f} ms").format(ms=0.75 * _step_ms(1)),
                    _("The two times overlap, they are not added. Only the longer one is seen."),
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
