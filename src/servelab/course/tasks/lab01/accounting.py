"""Tasks 1 to 3: bytes of a token, the crossover, and a pool of the wrong size."""

import random
from typing import Any

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _

MIB = 2**20


def model(seed: int) -> dict[str, int]:
    return _shape(draw(seed, "lab01.model"), bytes_per_element=2)


def _shape(rng: random.Random, bytes_per_element: int) -> dict[str, int]:
    num_kv_heads = rng.choice([2, 4, 8])
    return {
        "num_layers": rng.choice([22, 26, 34, 36, 42, 46]),
        "num_query_heads": num_kv_heads * rng.choice([3, 4, 5, 7]),
        "num_kv_heads": num_kv_heads,
        "head_dim": rng.choice([72, 80, 96, 112, 192]),
        "bytes_per_element": bytes_per_element,
    }


def _kv_bytes(num_layers: int, num_query_heads: int, num_kv_heads: int, head_dim: int, bytes_per_element: int) -> int:
    return num_layers * 2 * num_kv_heads * head_dim * bytes_per_element


def _kv_case(shape: dict[str, int]) -> Case:
    return Case(tuple(shape.values()), _kv_bytes(**shape))


def _kv_visible(seed: int) -> list[Case]:
    smollm2 = {"num_layers": 30, "num_query_heads": 9, "num_kv_heads": 3, "head_dim": 64, "bytes_per_element": 2}
    return [_kv_case(smollm2), _kv_case(model(seed))]


def _kv_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "lab01.kv-bytes")
    return [_kv_case(_shape(rng, size)) for size in (1, 4, 2, 4)]


def _of_shape(factor: Any) -> Any:
    return lambda case, got: got * 1.0 == case.expected * factor(*case.arguments)


KV_BYTES = Task(
    id="lab01.kv-bytes",
    title=_("Task 1: bytes of one token"),
    kind="fill",
    points=2,
    minutes=6,
    difficulty="easy",
    call="kv_bytes_per_token(num_layers, num_query_heads, num_kv_heads, head_dim, bytes_per_element)",
    visible=_kv_visible,
    hidden=_kv_hidden,
    mistakes=(
        Mistake(
            "query heads",
            _of_shape(lambda layers, query, kv, dim, size: query / kv),
            _("You count query heads. Which heads have keys and values of their own?"),
        ),
        Mistake(
            "one of K and V",
            _of_shape(lambda layers, query, kv, dim, size: 1 / 2),
            _("You store one tensor for each token. Attention needs two."),
        ),
        Mistake(
            "elements",
            _of_shape(lambda layers, query, kv, dim, size: 1 / size),
            _("You count numbers. A number takes bytes_per_element bytes."),
        ),
        Mistake(
            "one layer",
            _of_shape(lambda layers, query, kv, dim, size: 1 / layers),
            _("You count one layer. Each layer has a cache of its own."),
        ),
        Mistake(
            "hidden size",
            _of_shape(lambda layers, query, kv, dim, size: (query + 2 * kv) / (2 * kv)),
            _("You store the query too. Who reads the query of an old token again?"),
        ),
    ),
    hints=(
        _("Which tensors of an old token does the next token read?"),
        _("The result does not change when only num_query_heads changes."),
        _("for each layer: K and V, for each KV head: head_dim numbers, each of bytes_per_element bytes"),
    ),
    seconds=3,
)


def _crossover(weight_bytes: int, kv_bytes_per_token: int, batch_size: int) -> int:
    return weight_bytes // (kv_bytes_per_token * batch_size) + 1


def _crossover_case(*arguments: int) -> Case:
    return Case(arguments, _crossover(*arguments))


def _crossover_visible(seed: int) -> list[Case]:
    kv_bytes = _kv_bytes(**model(seed))
    return [
        _crossover_case(269_030_016, 23_040, 1),
        _crossover_case(12_000, 100, 4),
        _crossover_case(10**9, kv_bytes, 8),
    ]


def _crossover_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "lab01.crossover")
    cases = []
    for batch_size in (1, rng.randint(2, 9), rng.randint(10, 64)):
        kv_bytes, tokens = 2 * rng.randint(3_000, 90_000), rng.randint(200, 9_000)
        exact = tokens * kv_bytes * batch_size
        cases += [_crossover_case(exact + rest, kv_bytes, batch_size) for rest in (0, -1, rng.randint(1, kv_bytes))]
    return cases


CROSSOVER = Task(
    id="lab01.crossover",
    title=_("Task 2: where KV overtakes the weights"),
    kind="fill",
    points=3,
    minutes=10,
    difficulty="medium",
    call="crossover(weight_bytes, kv_bytes_per_token, batch_size)",
    visible=_crossover_visible,
    hidden=_crossover_hidden,
    mistakes=(
        Mistake(
            "ignores the batch",
            lambda case, got: (
                case.arguments[2] > 1
                and got
                in (
                    _crossover(case.arguments[0], case.arguments[1], 1),
                    _crossover(case.arguments[0], case.arguments[1], 1) - 1,
                )
            ),
            _("You leave out the batch. Every request of the step reads a cache of its own."),
        ),
        Mistake(
            "equal is not more",
            lambda case, got: got == case.expected - 1,
            _("At your number the KV reads are not more than the weights yet. Try it: multiply it out."),
        ),
        Mistake(
            "one too many",
            lambda case, got: got == case.expected + 1,
            _("One token fewer overtakes the weights already."),
        ),
    ),
    hints=(
        _("How many bytes of KV does one step read when each request holds one token? And two?"),
        _("At your number KV is more than the weights; at one token fewer it is not."),
        _("the largest context at which KV still fits into the weights' bytes, and one token more"),
    ),
    seconds=3,
)


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _pool_blocks(config: dict[str, Any], memory_bytes: int, block_size: int, *, head_dim: int = 0) -> int:
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    per_token = 2 * config["num_hidden_layers"] * kv_heads * (head_dim or _head_dim(config)) * 2
    return int(memory_bytes // (block_size * per_token))


def _reported(config: dict[str, Any], memory_bytes: int, block_size: int) -> int:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return _pool_blocks(config, memory_bytes, block_size, head_dim=head_dim)


def _config(layers: int, hidden: int, heads: int, **more: int | None) -> dict[str, Any]:
    return {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, **more}


def _pool_case(name: str, config: dict[str, Any], memory_bytes: int, block_size: int = 16) -> Case:
    call = _("pool_blocks(the config of {name}, {memory:,} bytes, block_size={size})").format(
        name=name, memory=memory_bytes, size=block_size
    )
    return Case((config, memory_bytes, block_size), _pool_blocks(config, memory_bytes, block_size), call)


def _pool_visible(seed: int) -> list[Case]:
    memory_bytes = draw(seed, "lab01.pool").randint(900, 4_000) * MIB
    llama = _config(32, 4_096, 32, num_key_value_heads=8)
    qwen3 = _config(36, 2_560, 32, num_key_value_heads=8, head_dim=128)
    return [_pool_case("Llama-3-8B", llama, memory_bytes), _pool_case("Qwen3-4B", qwen3, memory_bytes)]


def _pool_hidden(seed: int) -> list[Case]:
    rng = draw(seed, "lab01.pool-blocks")
    heads = 8 * rng.randint(2, 5)
    configs = (
        (
            "a model with wide heads",
            _config(rng.randint(20, 60), heads * 80, heads, num_key_value_heads=8, head_dim=256),
        ),
        (
            "a model with narrow heads",
            _config(rng.randint(20, 60), heads * 128, heads, num_key_value_heads=8, head_dim=64),
        ),
        (
            "a model whose head_dim is null",
            _config(rng.randint(20, 60), heads * 96, heads, num_key_value_heads=4, head_dim=None),
        ),
        ("a model without KV heads in its config", _config(rng.randint(20, 60), heads * 72, heads)),
    )
    return [
        _pool_case(name, config, rng.randint(500, 9_000) * MIB, rng.choice([8, 16, 32])) for name, config in configs
    ]


POOL_BLOCKS = Task(
    id="lab01.pool-blocks",
    title=_("Task 3: a pool of the wrong size"),
    kind="debug",
    points=3,
    minutes=12,
    difficulty="medium",
    call="pool_blocks(config, memory_bytes, block_size)",
    visible=_pool_visible,
    hidden=_pool_hidden,
    mistakes=(
        Mistake(
            "as reported",
            lambda case, got: got == _reported(*case.arguments),
            _("The fault is still in. Compare the two configs: what does one say that the code never reads?"),
        ),
        Mistake(
            "always 128",
            lambda case, got: got == _pool_blocks(*case.arguments, head_dim=128),
            _("You take 128 where the config says nothing. Not every model has heads of 128."),
        ),
        Mistake(
            "rounds up",
            lambda case, got: got == case.expected + 1,
            _("The last block of your pool does not fit into the memory."),
        ),
        Mistake(
            "query heads",
            lambda case, got: (
                got == _pool_blocks({**case.arguments[0], "num_key_value_heads": None}, *case.arguments[1:])
            ),
            _("You count query heads. The repair belongs elsewhere."),
        ),
    ),
    hints=(
        _("For which of the two models is the answer of `reported_pool_blocks` right?"),
        _("Where a config names head_dim, hidden_size plays no part in the result."),
        _("head_dim = the config's, if it is there and not null; else hidden_size // num_attention_heads"),
    ),
    seconds=3,
)
