"""The readiness check of chapter 00: two questions for each primer."""

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
from servelab.course.content.form import Choice, QuizItem, ReadinessItem
from servelab.translation import _

READINESS = (
    ReadinessItem(
        QuizItem(
            "old-keys",
            _("A model that writes text has read 3 tokens. A 4th one is added. What happens to the key of token 1?"),
            (
                Choice(
                    "stays",
                    _("Nothing. It stays as it is in every layer"),
                    _("A token looks only at itself and at earlier ones, so a later one cannot change it."),
                    right=True,
                ),
                Choice(
                    "changes",
                    _("It changes in every layer, because token 1 now looks at token 4"),
                    _("In a causal model token 1 looks at nothing that comes later."),
                ),
                Choice(
                    "deep",
                    _("It stays in the first layer and changes in the deeper ones"),
                    _("What enters a deeper layer comes from tokens up to this one, and those did not change."),
                ),
            ),
        ),
        "00.attention",
    ),
    ReadinessItem(
        QuizItem(
            "queries",
            _(
                "K and V of 100 tokens are kept. Token 101 passes the network, to find token 102. Which queries are "
                "computed?"
            ),
            (
                Choice(
                    "all",
                    _("Those of all 101 tokens"),
                    _("The old tokens' outputs are done. Nobody asks for them again, so their queries are not needed."),
                ),
                Choice(
                    "one",
                    _("That of token 101 only"),
                    _("One query looks at 101 keys: 100 that were kept and its own."),
                    right=True,
                ),
                Choice(
                    "none",
                    _("None: everything is in the cache"),
                    _("The new token was never seen. It needs a query, and its key and value are kept for later."),
                ),
            ),
        ),
        "00.attention",
    ),
    ReadinessItem(
        QuizItem(
            "slower-clock",
            _(
                "A machine reads {reads:.0f} GB/s and computes {computes:.0f} GFLOP/s. A step reads {bytes:.0f} GB and "
                "does {flops:.0f} GFLOP. How long does it take at least?"
            ).format(reads=READS / 1e9, computes=COMPUTES / 1e9, bytes=STEP_BYTES / 1e9, flops=STEP_FLOPS / 1e9),
            (
                Choice(
                    "compute",
                    _("{ms:.0f} ms").format(ms=COMPUTE_MS),
                    _("This is the arithmetic. The bytes take longer, and the step has to wait for them."),
                ),
                Choice(
                    "read",
                    _("{ms:.0f} ms").format(ms=READ_MS),
                    _("The slower of the two: reading. The arithmetic is done while the bytes come in."),
                    right=True,
                ),
                Choice(
                    "sum",
                    _("{ms:.0f} ms").format(ms=READ_MS + COMPUTE_MS),
                    _("This adds the two times. A machine can read the next numbers while it computes with these."),
                ),
            ),
        ),
        "00.bandwidth",
    ),
    ReadinessItem(
        QuizItem(
            "per-weight",
            _("A matrix of weights is multiplied by the vector of one token. How many FLOPs come to each weight?"),
            (
                Choice(
                    "two",
                    _("2"),
                    _(
                        "One multiplication and one addition. A weight of 16 bit takes 2 bytes: 1 FLOP for each "
                        "byte that is read."
                    ),
                    right=True,
                ),
                Choice(
                    "rows",
                    _("As many as the matrix has rows"),
                    _("Each weight meets one number of the vector, once."),
                ),
                Choice(
                    "many",
                    _("Hundreds: that is why GPUs are needed"),
                    _("Hundreds it becomes when hundreds of tokens share the weight. With one token it is used once."),
                ),
            ),
        ),
        "00.bandwidth",
    ),
    ReadinessItem(
        QuizItem(
            "sharing",
            _("SmolLM2 has {query} query heads and {kv} KV heads. How many query heads read the same key?").format(
                query=SMOLLM2.num_query_heads, kv=SMOLLM2.num_kv_heads
            ),
            (
                Choice("one", _("1"), _("Then there were as many KV heads as query heads.")),
                Choice(
                    "group",
                    _("{group}").format(group=GROUP),
                    _("{query} / {kv}. They ask different questions of the same key.").format(
                        query=SMOLLM2.num_query_heads, kv=SMOLLM2.num_kv_heads
                    ),
                    right=True,
                ),
                Choice(
                    "all",
                    _("{query}").format(query=SMOLLM2.num_query_heads),
                    _("That is multi-query attention, MQA: one KV head for all."),
                ),
            ),
        ),
        "00.heads",
    ),
    ReadinessItem(
        QuizItem(
            "numbers-kept",
            _(
                "Head dimension {dim}, {query} query heads, {kv} KV heads. How many numbers are kept for one token in "
                "one layer?"
            ).format(dim=SMOLLM2.head_dim, query=SMOLLM2.num_query_heads, kv=SMOLLM2.num_kv_heads),
            (
                Choice(
                    "half",
                    _("{n}").format(n=KV_NUMBERS_PER_LAYER // 2),
                    _("That is K alone. V is kept as well."),
                ),
                Choice(
                    "kept",
                    _("{n}").format(n=KV_NUMBERS_PER_LAYER),
                    _("2 (K and V) × {kv} KV heads × {dim}.").format(kv=SMOLLM2.num_kv_heads, dim=SMOLLM2.head_dim),
                    right=True,
                ),
                Choice(
                    "query",
                    _("{n:,}").format(n=QUERY_NUMBERS_PER_LAYER),
                    _("This counts query heads. Queries are not kept, and their number does not matter here."),
                ),
            ),
        ),
        "00.heads",
    ),
)
