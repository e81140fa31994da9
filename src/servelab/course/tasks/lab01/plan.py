"""Task 4: a plan for a card. Many plans are right; the judge recomputes what each of them promises."""

from typing import Any

from servelab.course.tasks.task import Case, Mistake, Task, draw
from servelab.translation import _

MIB = 2**20


BLOCK_SIZE = 16


def draw_card(seed: int) -> dict[str, int]:
    """A card whose memory or whose step limit, by the seed, decides how many requests may run at once."""
    rng = draw(seed, "lab01.card")
    kv_bytes = 4 * 8 * 128 * rng.choice([28, 32, 36, 40, 48])
    prompt, output = 16 * rng.randint(20, 50), 16 * rng.randint(5, 20) + 1
    seats, spare = rng.randint(11, 24), rng.randint(2, 8)
    by_memory, by_step = (seats, seats + spare) if rng.random() < 0.5 else (seats + spare, seats)
    weight_bytes, reserve_bytes = rng.randint(6_000, 18_000) * MIB, rng.randint(900, 2_500) * MIB
    request_bytes = _blocks(prompt + output) * BLOCK_SIZE * kv_bytes
    return {
        "memory_bytes": _mib(weight_bytes + reserve_bytes + int((by_memory + 0.9) * request_bytes)),
        "weight_bytes": weight_bytes,
        "reserve_bytes": reserve_bytes,
        "kv_bytes_per_token": kv_bytes,
        "block_size": BLOCK_SIZE,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "step_bytes": _mib(weight_bytes + int((by_step + 0.5) * (prompt + output) * kv_bytes)),
    }


def _mib(num_bytes: int) -> int:
    return num_bytes // MIB * MIB


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def most_seats(card: dict[str, int]) -> int:
    """The most requests that this card can serve at once under the rules of the task."""
    tokens, kv_bytes = card["prompt_tokens"] + card["output_tokens"], card["kv_bytes_per_token"]
    pool = (card["memory_bytes"] - card["weight_bytes"] - card["reserve_bytes"]) // (BLOCK_SIZE * kv_bytes)
    return min(pool // _blocks(tokens), (card["step_bytes"] - card["weight_bytes"]) // (tokens * kv_bytes))


def _faults(case: Case, got: Any) -> list[str]:
    """Which rules a plan breaks, in the order in which a message should name them."""
    (card,) = case.arguments
    names = ("num_blocks", "max_model_len", "max_num_seqs")
    if type(got) is not dict or set(got) != set(names) or any(type(got[n]) is not int or got[n] < 1 for n in names):
        return ["shape"]
    blocks, length, seats = (got[name] for name in names)
    kv_bytes = card["kv_bytes_per_token"]
    pool_bytes = blocks * BLOCK_SIZE * kv_bytes
    broken = {
        "weights": pool_bytes > card["memory_bytes"] - card["weight_bytes"],
        "reserve": pool_bytes > card["memory_bytes"] - card["weight_bytes"] - card["reserve_bytes"],
        "prompt only": length < card["prompt_tokens"] + card["output_tokens"],
        "preemption": seats * _blocks(length) > blocks,
        "slow": card["weight_bytes"] + seats * length * kv_bytes > card["step_bytes"],
        "too few": seats < most_seats(card),
    }
    return [name for name, is_broken in broken.items() if is_broken]


def _fault(name: str, message: str) -> Mistake:
    return Mistake(name, lambda case, got: _faults(case, got)[0] == name, message)


PLAN = Task(
    id="lab01.plan",
    title=_("Task 4: a plan for your card"),
    kind="design",
    points=4,
    minutes=15,
    difficulty="hard",
    call="plan(card)",
    visible=lambda seed: [Case((draw_card(seed),), None, _("plan(your card)"))],
    compare=lambda case, got: not _faults(case, got),
    mistakes=(
        _fault("shape", _("Return a dict with num_blocks, max_model_len and max_num_seqs, whole numbers above 0.")),
        _fault("weights", _("Weights and pool together are larger than the card.")),
        _fault(
            "reserve", _("Weights and pool fit, and nothing is left for activations: reserve_bytes is broken into.")
        ),
        _fault("prompt only", _("The longest request does not get through: its prompt and its output need room.")),
        _fault(
            "preemption",
            _("When every seat has grown to max_model_len, the pool lacks blocks, and someone is preempted."),
        ),
        _fault("slow", _("Your slowest step reads more than step_bytes. Which step is the slowest?")),
        _fault(
            "too few",
            _("It holds, but more requests could run at once. What keeps you from one more seat?"),
        ),
    ),
    hints=(
        _("Two limits bound the seats: the memory, and what a step may read. Which one bounds yours?"),
        _("seats x blocks of a full-grown request <= num_blocks; weights + seats x max_model_len x KV <= step_bytes"),
        _("max_model_len: no more than needed; seats: the smaller of what pool and step allow; num_blocks: enough"),
    ),
    seconds=3,
)
