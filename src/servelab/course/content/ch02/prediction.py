"""The predictions of chapter 02, with what explains the gap. Numbers are computed here."""

from servelab.course.content.ch02.load import (
    BLOCK_SIZE,
    HALF_BLOCK,
    HALF_SMALL_BLOCK,
    LARGE_BLOCK,
    MAX_MODEL_LEN,
    MEAN_TOKENS,
    QUESTION_TOKENS,
    REQUEST_TOKENS,
    RESERVED_FIT,
    SMOLLM2_BYTES,
    SYSTEM_TOKENS,
    empty_share,
    tokens_taken_over,
)
from servelab.course.content.form import Choice, Prediction
from servelab.translation import _


def _ninth(values: object) -> str:
    """Which choice the third block of A's table is."""
    block = dict(values)["actual"]  # type: ignore[call-overload]
    return {1: "same", 2: "next"}.get(block, "free")


def _copies(values: object) -> str:
    """Which choice a run is that made so many copies for two answers."""
    return {0: "place", 1: "one"}.get(dict(values)["actual"], "both")  # type: ignore[call-overload]


def _reads(values: object) -> str:
    """Which choice a launch is that asked for each number of K so many times."""
    return {1: "once", 3: "group"}.get(dict(values)["actual"], "all")  # type: ignore[call-overload]


_PROMPT = SYSTEM_TOKENS + QUESTION_TOKENS
_TAKEN = tokens_taken_over(_PROMPT, SYSTEM_TOKENS, BLOCK_SIZE)

PREDICTIONS = (
    Prediction(
        "02.ninth",
        _(
            "A has 7 prompt tokens, B has 2. A block has 4 slots, and the pool has 7 blocks, 0 to 6. A arrives first, "
            "B right after it; the pool hands out 0, 1, 2, ... From then on each of them "
            "stores one output token a step. **Where does A's 9th token go?**"
        ),
        _(
            "A's 7 prompt tokens took blocks 0 and 1, B's 2 took block 2. A's 8th token filled the last slot of "
            "block 1, so the 9th needed a block, and the pool gave block {actual}. A's table is now {table}: it "
            "skips a block, and nothing had to move."
        ),
        choices=(
            Choice(
                "same",
                _("Into a free slot of block 1, A's second block"),
                _("Block 1 has 4 slots, for A's tokens 5 to 8. The 8th token took the last of them."),
            ),
            Choice(
                "next",
                _("Into block 2, the one behind A's other blocks"),
                _("B arrived before A needed it, so block 2 holds B's tokens. Its two empty slots are B's as well."),
            ),
            Choice(
                "free",
                _("Into block 3, wherever the rest of A lies"),
                _("Any free block will do. The table remembers which one it was."),
            ),
            Choice(
                "move",
                _("A moves to three blocks that lie in a row"),
                _("Nothing ever moves. The table is there so that nothing has to."),
            ),
        ),
        how="counted",
        decide=_ninth,
    ),
    Prediction(
        "02.same-tokens",
        _(
            "Three prompts, 12 output tokens each: 36 output tokens, chosen greedily in float32. You run them with one "
            "unbroken range a request, again with blocks of 16, and again with blocks of 4 that lie mixed in the pool. "
            "**How many of the 36 output tokens are not the same in all three runs?**"
        ),
        _(
            "Attention takes a query, and for each earlier token a key and a value. Where these lie is not in the "
            "formula. Each key carries its own position: the model turned it by an angle that says where the token "
            "stands in the text, before it was stored. So the engine only has to find the right keys. With blocks of 4 "
            "it jumped {places} times to a block that does not follow the one before."
        ),
        unit=_("output tokens"),
        high=36,
        how="counted",
    ),
    Prediction(
        "02.capacity",
        _(
            "A pool of 512 MiB, {bytes:,} bytes a token (SmolLM2 at 16 bit). Each request ends with {tokens} tokens, "
            "prompt and output together. A server that reserves {reserve:,} slots for each holds {fit} requests. "
            "**How many does it hold with blocks of {block} and nothing reserved?**"
        ).format(
            bytes=SMOLLM2_BYTES,
            tokens=REQUEST_TOKENS,
            reserve=MAX_MODEL_LEN,
            fit=RESERVED_FIT,
            block=BLOCK_SIZE,
        ),
        _(
            "The pool has {slots:,} slots, that is {blocks:,} whole blocks. A request of {tokens} tokens takes "
            "{per_request} blocks: {owned} slots, of which {wasted} stay empty. {blocks:,} / {per_request}, rounded "
            "down, is {actual}. That is {gain:.1f} times as many: about {reserve:,} reserved slots ÷ {tokens} used."
        ),
        unit=_("requests"),
        how="calculated",
        close=1.1,
        too_low=_("Did part of the reservation stay in your count? A block comes only when a token needs it."),
        too_high=_("More than the pool has slots for: each request keeps its {owned} slots until it ends."),
    ),
    Prediction(
        "02.waste",
        _(
            "Now lengths differ. The course keeps one workload for all chapters: 500 made-up requests with the shape "
            "of measured ones. Most are short, a few very long: 300 tokens on average, about half prompt and half "
            "output, 2,048 at most.\n\nYou fill the 512 MiB pool in order of arrival until the next request does not "
            "fit. Each is at its full length: the worst moment for blocks, because a request that still decodes owns "
            "even fewer. You do it three times: reserving 2,048 for each; reserving exactly prompt + output, as if "
            "somebody knew the output tokens in advance; with blocks of 16. **With blocks of 16, how many percent of "
            "the slots that requests own hold no token?**"
        ),
        _(
            "Only the last block of a request can have empty slots, 0 to 15 of its 16: (0 + 15) / 2 = 7.5 on average. "
            "Counted here: {mean_waste:.1f}, beside {mean_tokens:.0f} tokens. As a share: {mean_waste:.1f} ÷ "
            "({mean_tokens:.0f} + {mean_waste:.1f}) slots owned = {actual:.1f} %. The server that reserves 2,048 slots "
            "wastes {reserved_waste:.0f} % of what it hands out. One that knew every length in advance would get "
            "{exact} requests into an empty pool. Blocks hold {paged}, and need to know nothing."
        ),
        unit="%",
        high=100,
        how="counted",
        close=1.4,
        too_high=_("It is tempting to think of half a block in every block. Which blocks of a request are never full?"),
        too_low=_("A length is a multiple of 16 only now and then, so most last blocks have some empty slots."),
    ),
    Prediction(
        "02.block-size",
        _(
            "The same workload, all 500 requests, with blocks of 256 instead of 16. "
            "**How many percent of the slots that requests own hold no token now?**"
        ),
        _(
            "Half a block again: (0 + 255) / 2 = {half} slots a request, counted {{mean_waste:.0f}}. As a share of the "
            "slots owned: {half} / ({mean:.0f} + {half}) = {share:.0f} %. The pool holds {{fit}} of these requests "
            "instead of {{fit_16}}. The blocks are {larger} times as large. Half a block is then {half} slots instead "
            "of {small}, {times:.0f} times the waste, but only about {share_times:.0f} times the share: what you "
            "divide by grows as well."
        ).format(
            half=HALF_BLOCK,
            mean=MEAN_TOKENS,
            share=100 * empty_share(HALF_BLOCK),
            larger=LARGE_BLOCK // BLOCK_SIZE,
            small=HALF_SMALL_BLOCK,
            times=HALF_BLOCK / HALF_SMALL_BLOCK,
            share_times=empty_share(HALF_BLOCK) / empty_share(HALF_SMALL_BLOCK),
        ),
        unit="%",
        high=100,
        how="counted",
        close=1.25,
        too_high=_("The wasted slots grow with the blocks. But what do you divide them by?"),
        too_low=_("How many slots does half a block of 256 have, beside a request of 300 tokens?"),
    ),
    Prediction(
        "02.hit",
        _(
            "A first request had {system:,} tokens of system prompt and {question} of a question, and the engine "
            "computed them all. Now comes a second one: the same {system:,} tokens, and another question of {question} "
            "tokens. Blocks of {block}, prefix caching on. **How many of its {prompt:,} prompt tokens must the engine "
            "compute?**"
        ).format(system=SYSTEM_TOKENS, question=QUESTION_TOKENS, block=BLOCK_SIZE, prompt=_PROMPT),
        _(
            "{system:,} = {full} x {block} + {rest}. Only full blocks can be found: {full} of them, {taken} tokens. "
            "The last {rest} tokens of the system prompt share a block with the question, so they are computed once "
            "more, with the {question} of the question: {{actual}}. The time to the first token fell from "
            "{{before_s:.2f}} s to {{after_s:.2f}} s on {{machine}}, {{ratio:.0f}} times less, for {tokens_ratio:.0f} "
            "times fewer tokens. The two need not agree: a step reads all weights, however few tokens it computes "
            "(chapter 01). Of the 8 output tokens of both questions, {{same}} are the same as without the cache."
        ).format(
            system=SYSTEM_TOKENS,
            full=_TAKEN // BLOCK_SIZE,
            block=BLOCK_SIZE,
            rest=SYSTEM_TOKENS - _TAKEN,
            taken=_TAKEN,
            question=QUESTION_TOKENS,
            tokens_ratio=_PROMPT / (_PROMPT - _TAKEN),
        ),
        unit=_("prompt tokens"),
        how="counted",
        close=1.05,
        too_low=_("The question alone? Look at the block in which the system prompt ends. Is it full of its tokens?"),
        too_high=_("K and V of a token depend on nothing that comes after it. Which full blocks begin alike?"),
    ),
    Prediction(
        "02.copy",
        _(
            "A user can ask for several answers to one prompt, to choose from. A asks for two (`n=2`). Its 7 prompt "
            "tokens are computed once. Nothing has to be found: both answers begin with one table, blocks 0 and 1, "
            "full or not. Block 1 has 4 slots and holds 3 tokens. Each answer draws its output tokens at random, by "
            "their probabilities (`temperature=1.0`), so each needs a place for an 8th token of its own. "
            "**Where do the two 8th tokens go?**"
        ),
        _(
            "Block {source} had two owners, the two answers {writer} and {other}. Both needed the same slot, offset 3, "
            "for their own 8th token. {writer} came first and took a copy: block {block} took the second place in "
            "{writer}'s table, {bytes:,} bytes. After that block {source} had one owner left, and {other} wrote in "
            "place. That is **copy-on-write**; an operating system does it with the pages of a forked process. Tables "
            "now: {tables}. Together they hold {held} blocks; without sharing it would be {alone}."
        ),
        choices=(
            Choice(
                "place",
                _("Both into the free slot of block 1, which is already in both tables"),
                _("There is one such slot and two different tokens. The second write would destroy the first answer."),
            ),
            Choice(
                "one",
                _("One into a copy of block 1, the other into block 1 itself"),
                _("The first who writes takes a copy. Then the block has one owner, who may write."),
            ),
            Choice(
                "both",
                _("Each into a copy of block 1 of its own"),
                _("After the first copy only one table names block 1. What would a second copy protect?"),
            ),
            Choice(
                "new",
                _("Each into the first slot of a new, empty block; block 1 stays as it is"),
                _("Position 7 is offset 3 of logical block 1. The table has no other place for it."),
            ),
        ),
        how="counted",
        decide=_copies,
    ),
    Prediction(
        "02.kernel-reads",
        _(
            "A decodes with 9 stored tokens. The model has 9 query heads and 3 KV heads: 3 query heads look at the "
            "same keys. **How many times does the kernel, all its programs together, ask for each stored number of "
            "K?**"
        ),
        _(
            "There were {programs} programs, one for each KV head. Each holds the queries of the 3 heads that share "
            "it, as rows of one tile, and reads a tile of keys once for all of them: K and V together {bytes:,} bytes. "
            "All three find their slots through the same table."
        ),
        choices=(
            Choice(
                "once",
                _("Once"),
                _("The queries that share a KV head sit in one program, so one read serves all 3 of them."),
            ),
            Choice(
                "group",
                _("3 times: once for each query head that shares it"),
                _("That is what a program for each query head would do, or a copy of K for each of them."),
            ),
            Choice(
                "all",
                _("9 times: once for each query head"),
                _("A query head looks at one KV head only, its group's. The other two it never needs."),
            ),
        ),
        how="counted",
        decide=_reads,
    ),
)
