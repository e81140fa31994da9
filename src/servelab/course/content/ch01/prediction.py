"""What chapter 01 asks before its results, and how it explains the gaps."""

from collections.abc import Mapping
from typing import Any

from servelab.costs import MODEL_SPECS, kv_cache_bytes_per_token, weight_bytes
from servelab.course.content.form import Choice, Prediction
from servelab.translation import _

SMOLLM2 = MODEL_SPECS["SmolLM2-135M"]
KV_BYTES = kv_cache_bytes_per_token(SMOLLM2)
WEIGHT_BYTES = weight_bytes(SMOLLM2)


def _placed(values: Mapping[str, Any]) -> str:
    """Which choice is right for the hole: refused though enough slots are free, or placed after all."""
    return "refused" if values["largest"] < values["needed"] <= values["free"] else "anywhere"


PREDICTIONS = (
    Prediction(
        "01.next-token",
        _(
            "The text has 256 tokens so far. Without a cache 256 rows pass the network for the next output token; with "
            "one it is 1 row. You have seen how long the 256 rows take. "
            "**How many times sooner is the next output token there, with the cache?**"
        ),
        _(
            "1 row instead of {rows}, but only {actual} times sooner: {with_ms} ms instead of {without_ms} ms. When "
            "{rows} rows pass together, each costs {row_ms} ms. The one row alone costs {with_ms} ms, {ratio} times as "
            "much. So a step is not billed by the row: something in it costs the same for one row as for many. "
            "Section 2 finds it."
        ),
        unit=_("times"),
        close=1.5,
        too_high=_("Did you divide the rows? Then you assumed that 256 rows cost 256 times as much as one."),
        too_low=_("The cache saves more than that, on this machine: most of a long step went into old rows."),
    ),
    Prediction(
        "01.batch",
        _(
            "One request alone: each decode step brings 1 output token. Now 8 requests decode together, and each step "
            "brings 8. Does such a step take 8 times as long? Then nothing is won: answer 1. No longer? Answer 8. "
            "**How many times as many output tokens a second do the 8 get together, on this machine?**"
        ),
        _(
            "A step for 8 requests took {longer} times as long as a step for one, and brought 8 output tokens. They "
            "share one read of the weights. Is the step longer all the same, and does 8 stand below the roof in the "
            "figure? Then the machine does not reach its ceilings: a CPU is slow at products of a few rows.\n\n"
            "Does the gain last? From 32 to 64 requests it is {last} times; 2 would be perfect. More requests mean "
            "more FLOPs for the same weights. A step for 64 requests does {intensity} FLOPs per byte, and the ridge "
            "point of this machine is at {ridge}. Below its ridge point a machine can bring nearly 2. The further "
            "beyond it, the less a doubled batch brings."
        ),
        unit=_("times"),
        high=8,
        close=1.3,
        too_low=_("You counted on more work taking more time. What does the step wait for, when it has one request?"),
        too_high=_("The weights are read once, yes. But 8 rows are also 8 times the arithmetic."),
    ),
    Prediction(
        "01.crossover",
        _(
            "SmolLM2 at 16 bit. Its weights: {parameters:,} parameters × 2 bytes = {weights:,} bytes. One token in the "
            "cache: {layers} layers × 2 (K and V) × {heads} KV heads × {dim} × 2 bytes = {bytes:,} bytes. "
            "**From about how many tokens on, over all requests, is the cache heavier than the whole model?** "
            "Estimate first, without a calculator."
        ).format(
            parameters=SMOLLM2.num_parameters,
            weights=WEIGHT_BYTES,
            layers=SMOLLM2.num_layers,
            heads=SMOLLM2.num_kv_heads,
            dim=SMOLLM2.head_dim,
            bytes=KV_BYTES,
        ),
        _(
            "{weights:,} bytes ÷ {bytes:,} bytes a token = {actual:,} tokens. It does not matter whether one request "
            "has them or about {requests} requests have 1,000 each. Up to there the weights are heavier. "
            "The table shows: the size of a model says little about its cache. What counts is layers × the numbers "
            "kept in a layer, and these are 2 × KV heads × head dimension. DeepSeek-V3 keeps one compressed vector in "
            "a layer instead of the keys and values of its heads."
        ),
        unit=_("tokens"),
        how="calculated",
        close=1.4,
        too_low=_("Round first: {weights:.0f} million ÷ {bytes:.0f} thousand. Did you lose a digit?").format(
            weights=WEIGHT_BYTES / 1e6, bytes=KV_BYTES / 1e3
        ),
        too_high=_("Round first: {weights:.0f} million ÷ {bytes:.0f} thousand. Is there a digit too many?").format(
            weights=WEIGHT_BYTES / 1e6, bytes=KV_BYTES / 1e3
        ),
    ),
    Prediction(
        "01.reserved",
        _(
            "A pool of 512 slots, a slot for one token. The server reserves 128 slots for each request, the most that "
            "prompt and output may have together. Six requests come: 7 or 2 prompt tokens, 6 to 30 output tokens. "
            "**How many percent of the slots that requests own hold a token, averaged over the run?**"
        ),
        _(
            "A request starts with its prompt, grows by one token a step, and is over long before 128: the longest "
            "ended with {longest} tokens. So {actual} % were used. No more than {together} requests ran at once: their "
            "reservations were the whole pool. The others waited beside slots that never held anything.\n\n"
            "The map tells two parts of a reservation apart. *Reserved* slots get a token later; *internal waste* "
            "never does. This is your run: step through it with the arrow keys, and press **What next?** to decide "
            "yourself who is admitted."
        ),
        unit="%",
        high=100,
        how="counted",
        close=1.4,
        too_high=_("Remember that a request owns all 128 slots from its first step on."),
        too_low=_("Even a request with few tokens has some of them stored in its first step."),
    ),
    Prediction(
        "01.hole",
        _("Now E arrives and needs 9 slots in a row. **What happens?**"),
        _(
            "Free are {holes} = {free} slots, more than the {needed} that E needs. But the longest run has {largest}, "
            "so E waits. Such a free run is a **hole**. Nobody holds more than they use, and the pool is not full. "
            "Memory that is free, but in pieces too small for the request that waits, is **external fragmentation**. "
            "The map calls it external waste."
        ),
        choices=(
            Choice(
                "front",
                _("E takes slots 0 to 8, where A was"),
                _("A left 7 slots. Slots 7 and 8 hold the keys and values of B, which still runs."),
            ),
            Choice(
                "anywhere",
                _("E takes 9 of the free slots, wherever they are"),
                _("There are enough. But this server keeps each request in one unbroken range."),
            ),
            Choice(
                "refused",
                _("E waits: no run of free slots is long enough"),
                _("The longest run has {largest} slots."),
            ),
            Choice(
                "full",
                _("E waits: fewer than 9 slots are free"),
                _("{free} slots are free. How many are free is not the question here."),
            ),
        ),
        how="counted",
        decide=_placed,
    ),
    Prediction(
        "01.idle",
        _(
            "Two seats, four requests A, B, C, D with outputs of 7, 2, 9 and 3 tokens, in this order. A and B start; C "
            "and D start when both are done. Every step has two seat-steps, used or idle. "
            "**How many percent of the seat-steps bring an output token?**"
        ),
        _(
            "A and B take {first} steps, C and D {second}: {steps} steps, {places} seat-steps for {tokens} output "
            "tokens, so {tokens} ÷ {places} = {actual} % are used. B is done after 2 steps; its seat stays empty until "
            "A is done, and C and D wait. With four outputs of 5 tokens it is {equal} %. With one long answer among "
            "short ones it is {outlier} %: the more the lengths differ, the worse."
        ),
        unit="%",
        high=100,
        how="counted",
        close=1.15,
        too_high=_("Each batch takes as many steps as its longest answer. What does the other seat do?"),
        too_low=_("Count the output tokens once more, and divide by two seats × all steps."),
    ),
)
