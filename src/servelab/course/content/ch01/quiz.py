"""The quizzes of chapter 01: two questions that look back, and its own. Every number is computed."""

from servelab.costs import (
    GPU_SPECS,
    MODEL_SPECS,
    decode_step_seconds,
    kv_cache_bytes_per_token,
    kv_weight_crossover_tokens,
    weight_bytes,
)
from servelab.course.content.form import Choice, Quiz, QuizItem
from servelab.translation import _

TTFT_MS, TPOT_MS, OUTPUTS = 300, 40, 26

RETRIEVAL = Quiz(
    "01.retrieval",
    _("From chapter 00: two questions"),
    (
        QuizItem(
            "whole-wait",
            _("TTFT {ttft} ms, TPOT {tpot} ms, {outputs} output tokens. How long until the answer is complete?").format(
                ttft=TTFT_MS, tpot=TPOT_MS, outputs=OUTPUTS
            ),
            (
                Choice(
                    "right",
                    _("{s:.2f} s").format(s=(TTFT_MS + (OUTPUTS - 1) * TPOT_MS) / 1000),
                    _("The first output token after TTFT, and then {more} more of them, each after TPOT.").format(
                        more=OUTPUTS - 1
                    ),
                    right=True,
                ),
                Choice(
                    "one-more",
                    _("{s:.2f} s").format(s=(TTFT_MS + OUTPUTS * TPOT_MS) / 1000),
                    _("The first output token is there after TTFT. It does not wait for TPOT as well."),
                ),
                Choice(
                    "tpot-only",
                    _("{s:.2f} s").format(s=OUTPUTS * TPOT_MS / 1000),
                    _("And the prompt? Its tokens have to pass the network before anything comes out."),
                ),
            ),
        ),
        QuizItem(
            "old-tokens",
            _(
                "The network has read 7 tokens and kept their keys and values. An 8th token is appended. Which keys "
                "and values have to be computed now?"
            ),
            (
                Choice(
                    "all",
                    _("Those of all 8 tokens"),
                    _("Earlier tokens never look at later ones. Their keys and values are still right."),
                ),
                Choice(
                    "new",
                    _("Those of the 8th token only"),
                    _("The other 7 are what they were. This chapter measures what it is worth to keep them."),
                    right=True,
                ),
                Choice(
                    "none",
                    _("None: the new token only asks"),
                    _("It asks with its query now. Token 9 will look at its key and value."),
                ),
            ),
        ),
    ),
)

_PROMPT, _ANSWER = 100, 3
_ROWS = sum(range(_PROMPT, _PROMPT + _ANSWER))
_QWEN = MODEL_SPECS["Qwen3-8B"]
_QWEN_BYTES = kv_cache_bytes_per_token(_QWEN)
_SMALL = MODEL_SPECS["Qwen3-0.6B"]
_T4_MS, _L4_MS = (1000 * decode_step_seconds(_SMALL, GPU_SPECS[name]) for name in ("T4", "L4"))
_LLAMA = MODEL_SPECS["Llama-3-8B"]
_USERS, _CONTEXT = 40, 4_096
_LLAMA_KV = _USERS * _CONTEXT * kv_cache_bytes_per_token(_LLAMA)
_SEATS, _LENGTHS = 3, (4, 10, 6, 5, 5, 5)
_STEPS = max(_LENGTHS[:_SEATS]) + max(_LENGTHS[_SEATS:])
_BEST = -(-sum(_LENGTHS) // _SEATS)
_USED = 100 * sum(_LENGTHS) / (_SEATS * _STEPS)

QUIZ = Quiz(
    "01",
    _("Quiz: the bottleneck"),
    (
        QuizItem(
            "rows",
            _("{prompt} prompt tokens, {output} output tokens. How many rows pass the network without a cache?").format(
                prompt=_PROMPT, output=_ANSWER
            ),
            (
                Choice(
                    "cached",
                    str(_PROMPT + _ANSWER - 1),
                    _("This is the count with the cache: the prompt once, then one row a step."),
                ),
                Choice(
                    "right",
                    str(_ROWS),
                    _("Three steps: {a} + {b} + {c}.").format(a=_PROMPT, b=_PROMPT + 1, c=_PROMPT + 2),
                    right=True,
                ),
                Choice(
                    "constant",
                    str(_PROMPT * _ANSWER),
                    _("The text grows: step 2 has one row more than step 1."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "qwen-bytes",
            _(
                "Qwen3-8B at 16 bit: {layers} layers, {query} query heads, {kv} KV heads, head dimension {dim}. How "
                "many bytes does one token take in the cache?"
            ).format(layers=_QWEN.num_layers, query=_QWEN.num_query_heads, kv=_QWEN.num_kv_heads, dim=_QWEN.head_dim),
            (
                Choice(
                    "query",
                    f"{_QWEN_BYTES * _QWEN.num_query_heads // _QWEN.num_kv_heads:,}",
                    _("You counted the query heads. Only KV heads have something to keep."),
                ),
                Choice(
                    "right",
                    f"{_QWEN_BYTES:,}",
                    _("{layers} × 2 × {kv} × {dim} × 2 bytes.").format(
                        layers=_QWEN.num_layers, kv=_QWEN.num_kv_heads, dim=_QWEN.head_dim
                    ),
                    right=True,
                ),
                Choice("half", f"{_QWEN_BYTES // 2:,}", _("Keys and values: two vectors for each KV head and layer.")),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "two-chips",
            _(
                "One user, {model} at 16 bit. Card X computes {x_flops:.0f} TFLOP/s and reads {x_band:.0f} GB/s. Card "
                "Y computes {y_flops:.0f} TFLOP/s and reads {y_band:.0f} GB/s. Where does one output token take "
                "longer, at the roofline?"
            ).format(
                model=_SMALL.name,
                x_flops=GPU_SPECS["T4"].flops_per_s["float16"] / 1e12,
                x_band=GPU_SPECS["T4"].bandwidth_bytes_per_s / 1e9,
                y_flops=GPU_SPECS["L4"].flops_per_s["float16"] / 1e12,
                y_band=GPU_SPECS["L4"].bandwidth_bytes_per_s / 1e9,
            ),
            (
                Choice(
                    "x",
                    _("On X: it computes only about half as fast"),
                    _("Its arithmetic would be done in microseconds. The step waits for the weights."),
                ),
                Choice(
                    "y",
                    _("On Y: it reads a little slower"),
                    _("{x:.2f} ms on X, {y:.2f} ms on Y. A large batch of short requests would turn it round.").format(
                        x=_T4_MS, y=_L4_MS
                    ),
                    right=True,
                ),
                Choice(
                    "same",
                    _("The same: one token is too little work for both"),
                    _("Little arithmetic, yes. But all the weights are read, and that takes milliseconds."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "llama-heavier",
            _(
                "Llama-3-8B at 16 bit: weights {weights:.1f} GB, {each:,} bytes a token. {users} users with "
                "{context:,} tokens each, prompt and output together. Which is heavier?"
            ).format(
                weights=weight_bytes(_LLAMA) / 1e9,
                each=kv_cache_bytes_per_token(_LLAMA),
                users=_USERS,
                context=_CONTEXT,
            ),
            (
                Choice(
                    "kv",
                    _("The cache, {gb:.1f} GB").format(gb=_LLAMA_KV / 1e9),
                    _("{tokens:,} tokens are stored, and the two are equal at {equal:,}.").format(
                        tokens=_USERS * _CONTEXT, equal=kv_weight_crossover_tokens(_LLAMA)
                    ),
                    right=True,
                ),
                Choice(
                    "weights",
                    _("The weights, by far: one user has only {gb:.2f} GB").format(gb=_LLAMA_KV / _USERS / 1e9),
                    _("One user, yes. Each of the others brings as much again; the weights are there once."),
                ),
                Choice(
                    "always",
                    _("The cache, as it always is"),
                    _("Not always: with 10 of these users the weights would be heavier."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "three-seats",
            _(
                "Static batching with {seats} seats, outputs of {lengths} tokens in this order. How many steps, and "
                "how much of the seats is used?"
            ).format(seats=_SEATS, lengths=", ".join(map(str, _LENGTHS))),
            (
                Choice(
                    "right",
                    _("{steps} steps, {used:.0f} %").format(steps=_STEPS, used=_USED),
                    _("{a} steps for the first three, {b} for the last three: {tokens} output tokens.").format(
                        a=max(_LENGTHS[:_SEATS]), b=max(_LENGTHS[_SEATS:]), tokens=sum(_LENGTHS)
                    ),
                    right=True,
                ),
                Choice(
                    "perfect",
                    _("{steps} steps, {used:.0f} %").format(steps=_BEST, used=100 * sum(_LENGTHS) / (_SEATS * _BEST)),
                    _("That would need somebody for each seat in each step. Static batching lets seats wait."),
                ),
                Choice(
                    "sum",
                    _("{steps} steps, {used:.0f} %").format(steps=sum(_LENGTHS), used=100 / _SEATS),
                    _("That is one request after another, with the other seats empty."),
                ),
            ),
            new_numbers=True,
        ),
        QuizItem(
            "one-word",
            _("A server reads documents and answers each with one token, yes or no. What does keeping K and V win?"),
            (
                Choice(
                    "much",
                    _("Much: the documents are long"),
                    _("Long prompts, but each passes the network once anyway."),
                ),
                Choice(
                    "nothing",
                    _("Nothing: there is no second output token to use them"),
                    _("With one output token both ways compute the same rows, and the cache only takes memory."),
                    right=True,
                ),
                Choice(
                    "half",
                    _("Half of the time"),
                    _("Count the rows with and without the cache for one output token."),
                ),
            ),
        ),
        QuizItem(
            "which-trouble",
            _(
                "A server keeps each request in one unbroken range. Its pool shows 40 % of the slots as free, and yet "
                "a request that needs 10 % of the pool waits for memory. Which trouble is it?"
            ),
            (
                Choice(
                    "reserved",
                    _("Reserved memory: requests own more than they use"),
                    _("Reserved slots are owned by somebody. These 40 % are free."),
                ),
                Choice(
                    "holes",
                    _("Holes: no free range is long enough"),
                    _("Free, but nowhere 10 % in a row. A faster chip would not help: this is bookkeeping."),
                    right=True,
                ),
                Choice(
                    "idle",
                    _("Idle seats: nobody computes in them"),
                    _("The request waits for memory. A seat is not what it lacks."),
                ),
            ),
        ),
    ),
)
