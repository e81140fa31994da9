"""The primers of chapter 00: ten minutes each for what the course takes as known."""

import math

from servelab.costs import kv_cache_bytes_per_token
from servelab.course.content.ch00.number import (
    COMPUTE_MS,
    COMPUTES,
    GROUP,
    KV_NUMBERS_PER_LAYER,
    QUERY_NUMBERS_PER_LAYER,
    READ_MS,
    READS,
    SMOLLM2,
    STEP_BYTES,
    STEP_FLOPS,
)
from servelab.course.content.form import Primer
from servelab.translation import _

KEYS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
VALUES = ((2.0, 0.0), (0.0, 2.0), (1.0, 1.0))
QUERY = (1.0, 2.0)


def attention_table() -> str:
    """Return the hand example of the first primer as a Markdown table, every intermediate value computed."""
    dots = [sum(q * k for q, k in zip(QUERY, key, strict=True)) for key in KEYS]
    scores = [dot / math.sqrt(len(QUERY)) for dot in dots]
    powers = [math.exp(score) for score in scores]
    weights = [power / sum(powers) for power in powers]
    head = _("| Token | K | V | q · k | / √2 | exp | weight | weight × V |")
    rows = [
        f"| {number} | ({key[0]:.0f}, {key[1]:.0f}) | ({value[0]:.0f}, {value[1]:.0f}) | {dot:.0f} | {score:.3f} "
        f"| {power:.3f} | {weight:.3f} | ({weight * value[0]:.3f}, {weight * value[1]:.3f}) |"
        for number, (key, value, dot, score, power, weight) in enumerate(
            zip(KEYS, VALUES, dots, scores, powers, weights, strict=True), start=1
        )
    ]
    return "\n".join([head, "|---" * 8 + "|", *rows])


def attention_output() -> tuple[float, float]:
    """Return what the third token of the hand example gets: the weighted sum of the values."""
    powers = [math.exp(sum(q * k for q, k in zip(QUERY, key, strict=True)) / math.sqrt(2)) for key in KEYS]
    weights = [power / sum(powers) for power in powers]
    first, second = (sum(weight * value[i] for weight, value in zip(weights, VALUES, strict=True)) for i in (0, 1))
    return first, second


PRIMERS = (
    Primer(
        "00.attention",
        _("Attention on three tokens, and why old K and V never change"),
        _(
            "Every token makes three vectors in every layer: a **query** (what it looks for), a **key** (what it "
            "offers) and a **value** (what it hands over). Token 3 compares its query with the keys of tokens 1, 2 "
            "and 3, turns the scores into weights that sum to 1, and adds up the values with these weights.\n\n"
            "Take vectors of two numbers. The query of token 3 is (1, 2).\n\n"
            "{table}\n\n"
            "The sums of the last column are token 3's output: ({first:.3f}, {second:.3f}).\n\n"
            "Now token 4 arrives. It brings its own query, key and value, and looks at four keys. Which of the numbers "
            "above does it change? **None.** A token looks only at itself and at what came before it; this is what "
            "*causal* means. So the output of token 3 stays, hence what token 3 feeds into the next layer stays, hence "
            "its key and value there stay too.\n\n"
            "That is all the reason there is for a **KV cache**: what never changes can be kept. A query is used once, "
            "in its own step, and is not kept."
        ).format(table=attention_table(), first=attention_output()[0], second=attention_output()[1]),
    ),
    Primer(
        "00.bandwidth",
        _("Bandwidth against FLOPs: two clocks, and the slower one counts"),
        _(
            "A step of a model does two things. It **reads** numbers from memory, and it **computes** with them. "
            "Bandwidth says how many bytes a second can be read. FLOP/s says how many multiplications and additions a "
            "second can be done. The two can overlap, so a step takes at least the longer of the two times.\n\n"
            "An example. A machine reads {reads:.0f} GB/s and computes {computes:.0f} GFLOP/s. A step reads "
            "{step_bytes:.0f} GB and does {step_flops:.0f} GFLOP.\n\n"
            "- Reading: {step_bytes:.0f} / {reads:.0f} s = **{read_ms:.0f} ms**.\n"
            "- Computing: {step_flops:.0f} / {computes:.0f} s = **{compute_ms:.0f} ms**.\n\n"
            "The step takes {read_ms:.0f} ms, and for three quarters of it the arithmetic units wait. A machine with "
            "twice the FLOP/s would not be faster at all. Such a step is **memory-bound**.\n\n"
            "What helps is to do more with each byte that was read. A weight read for one token does one "
            "multiplication and one addition. The same weight, still at hand, can serve sixteen tokens of sixteen "
            "people, and the reading is paid once."
        ).format(
            reads=READS / 1e9,
            computes=COMPUTES / 1e9,
            step_bytes=STEP_BYTES / 1e9,
            step_flops=STEP_FLOPS / 1e9,
            read_ms=READ_MS,
            compute_ms=COMPUTE_MS,
        ),
    ),
    Primer(
        "00.heads",
        _("Query heads against KV heads"),
        _(
            "Attention runs several times side by side in a layer, each time on vectors of its own. One such run is a "
            "**head**. SmolLM2, the model of this course, has {query_heads} **query heads** in each of its "
            "{layers} layers: {query_heads} different questions a token asks.\n\n"
            "Keys and values are what has to be kept for later. To keep less of them, some query heads share one key "
            "and one value. SmolLM2 has {kv_heads} **KV heads**, so {group} query heads share each of them. This is "
            "*grouped-query attention*, GQA.\n\n"
            "- Kept for one token in one layer: 2 (K and V) × {kv_heads} KV heads × {head_dim} numbers = "
            "**{kept} numbers**.\n"
            "- With a KV head for every query head it were 2 × {query_heads} × {head_dim} = {unshared} numbers.\n"
            "- Over {layers} layers, 2 bytes a number: {layers} × {kept} × 2 = **{token_bytes:,} bytes a token**.\n\n"
            "Whenever you compute the size of a KV cache, count KV heads. Query heads cost arithmetic, not memory."
        ).format(
            query_heads=SMOLLM2.num_query_heads,
            kv_heads=SMOLLM2.num_kv_heads,
            layers=SMOLLM2.num_layers,
            head_dim=SMOLLM2.head_dim,
            group=GROUP,
            kept=KV_NUMBERS_PER_LAYER,
            unshared=QUERY_NUMBERS_PER_LAYER,
            token_bytes=kv_cache_bytes_per_token(SMOLLM2),
        ),
    ),
)
