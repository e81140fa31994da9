"""The lesson's three examples in numbers: users on one card, one user's wait, long contexts. Nothing is measured here.

Each assumption is a field of `Card` or a parameter with a name; change it, and see what hangs on it. The memory needs
no clock. Whatever is in seconds hangs on `efficiency`, which is taken and not measured: compare two of its numbers
with each other, and do not promise one of them to anybody.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from servelab.costs import (
    GPU_SPECS,
    MODEL_SPECS,
    MemoryBudget,
    ModelSpec,
    RequestLength,
    memory_budget,
    requests_that_fit,
    workload,
)
from servelab.engine import EngineConfig
from servelab.simulate.deployment import Deployment
from servelab.simulate.load import ClosedLoop, arrive_at_once, equal_lengths
from servelab.simulate.result import Simulation
from servelab.simulate.simulator import simulate
from servelab.simulate.speculation import Drafting


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One model on one GPU: what the examples take for granted. ValueError for a model or GPU that the tables lack.

    memory_bytes: None is what the driver reports (`GPUSpec.reported_bytes`). usable_share: of it, for weights,
        activations and KV; as high as an operator dares who has but one card for so large a model.
    bytes_per_parameter: 1, 8-bit weights: 16-bit ones of 70B do not fit. bytes_per_embedding: embedding table and
        output projection stay in 16 bit. compute_dtype: whose peak the arithmetic has; None is the GPU's default, as
        where 8-bit weights are widened before they are multiplied.
    bytes_per_element: of a number of K or V: 2 in 16 bit, 1 in FP8 with static scales. block_size: tokens.
    step_tokens, step_requests: the largest step, for which activations find room; the scheduler's budget and seats.
    efficiency, overhead_s: see `Deployment`. 0.6 of the roofline is an assumption, not a measurement.
    """

    model: str = "Llama-3-70B"
    gpu: str = "H100 SXM"
    memory_bytes: int | None = None
    usable_share: float = 0.98
    bytes_per_parameter: float = 1
    bytes_per_embedding: float = 2
    compute_dtype: str | None = None
    bytes_per_element: float = 2
    block_size: int = 16
    step_tokens: int = 4_096
    step_requests: int = 256
    efficiency: float = 0.6
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value, table in (("model", self.model, MODEL_SPECS), ("gpu", self.gpu, GPU_SPECS)):
            if value not in table:
                raise ValueError(f"expected {name} of {', '.join(table)}, got {value!r}")

    @property
    def spec(self) -> ModelSpec:
        return MODEL_SPECS[self.model]

    @property
    def budget(self) -> MemoryBudget:
        """Where the card's memory goes. Raises ValueError where the model leaves none for a single token."""
        return memory_budget(
            self.spec,
            self.memory_bytes or GPU_SPECS[self.gpu].reported_bytes,
            usable_share=self.usable_share,
            bytes_per_parameter=self.bytes_per_parameter,
            bytes_per_embedding=self.bytes_per_embedding,
            bytes_per_element=self.bytes_per_element,
            step_tokens=self.step_tokens,
            step_requests=self.step_requests,
        )

    @property
    def deployment(self) -> Deployment:
        return Deployment(
            spec=self.spec,
            roofline=GPU_SPECS[self.gpu].roofline(self.compute_dtype),
            bytes_per_parameter=self.bytes_per_parameter,
            bytes_per_embedding=self.bytes_per_embedding,
            bytes_per_element=self.bytes_per_element,
            efficiency=self.efficiency,
            overhead_s=self.overhead_s,
        )

    def config(self, kv_cache: str = "paged", max_model_len: int | None = None, *, trace: bool = False) -> EngineConfig:
        """The engine's configuration with this card's pool, which is the same for both kinds of cache."""
        return EngineConfig(
            num_blocks=self.budget.num_blocks(self.block_size),
            block_size=self.block_size,
            max_model_len=max_model_len,
            max_num_seqs=self.step_requests,
            max_num_batched_tokens=self.step_tokens,
            kv_cache=kv_cache,
            record_trace=trace,
        )

    def users(self, num_tokens: int, reserved_tokens: int | None = None) -> int:
        """Requests of so many tokens that the pool holds at once: paged, or with a reservation for each."""
        budget = self.budget
        slots = None if reserved_tokens else self.block_size
        return requests_that_fit(
            budget.num_blocks(self.block_size) * self.block_size * budget.bytes_per_token,
            budget.bytes_per_token,
            num_tokens,
            reserved_tokens=reserved_tokens,
            block_size=slots,
        )


@dataclass(frozen=True, slots=True)
class Crowded:
    """One load on one card, reserved and paged: everybody waits from the start.

    name: of the load. In `reserved` and `paged`, `running_when_full` says how many were served at the same time.
    """

    name: str
    reserved: Simulation
    paged: Simulation


@dataclass(frozen=True, slots=True)
class UsersOnACard:
    """Example 1. fit: users by their tokens, reserved and paged, by arithmetic. crowded: the same by simulation."""

    card: Card
    reserved_tokens: int
    fit: dict[int, tuple[int, int]]
    crowded: list[Crowded]


def users_on_a_card(
    card: Card | None = None,
    *,
    reserved_tokens: int = 4_096,
    lengths: Sequence[int] = (850, 1_270, 3_500),
    mean_tokens: Sequence[int] = (700, 900),
    num_requests: int = 400,
    seed: int = 0,
) -> UsersOnACard:
    """Example 1: how many users one card serves at once, when `reserved_tokens` are kept for each, and paged.

    lengths: tokens of a user, prompt and output, for the arithmetic; the longest of them is simulated too, as the load
    on which paging wins next to nothing. mean_tokens: of the long-tailed loads that are simulated
    (`servelab.costs.workload`), `num_requests` each. Those that run are longer than those that arrive: a long one stays
    longer. Raises ValueError for a length beyond the reservation.
    """
    card = card or Card()
    loads: dict[str, list[RequestLength]] = {
        f"long tail, mean {mean:,}": workload(num_requests, mean_tokens=mean, max_tokens=reserved_tokens, seed=seed)
        for mean in mean_tokens
    }
    longest = max(lengths)
    answer = max(1, longest // 32)  # half of it is written in the mean, so that `longest` tokens are held
    loads[f"all {longest:,}"] = equal_lengths(max(1, num_requests // 4), longest - answer // 2, answer)
    crowded = []
    for name, load in loads.items():
        both = [simulate(card.deployment, card.config(kind, reserved_tokens), arrive_at_once(load)) for kind in KINDS]
        crowded.append(Crowded(name, *both))
    fit = {tokens: (card.users(tokens, reserved_tokens), card.users(tokens)) for tokens in lengths}
    return UsersOnACard(card, reserved_tokens, fit, crowded)


KINDS = ("contiguous", "paged")


@dataclass(frozen=True, slots=True)
class OneUser:
    """Example 2. plain, drafted: the same users without and with speculation, by how many there are."""

    card: Card
    drafting: Drafting
    length: RequestLength
    plain: dict[int, Simulation]
    drafted: dict[int, Simulation]

    def speedup(self, users: int) -> float:
        """Output tokens per second with speculation, relative to without."""
        return self.drafted[users].output_tokens_per_s / self.plain[users].output_tokens_per_s


def one_user(
    card: Card | None = None,
    *,
    prompt_tokens: int = 128,
    output_tokens: int = 128,
    drafting: Drafting | None = None,
    users: Sequence[int] = (1, 8, 32, 64, 112),
    seed: int = 0,
) -> OneUser:
    """Example 2: one user waits for an answer; then more and more of them.

    drafting: by default 4 draft tokens, each accepted with a chance of 0.7 when those before it were, at a tenth of a
    decode step each. The users send one request after another, four each. Raises ValueError for what cannot be.
    """
    card = card or Card()
    drafting = drafting or Drafting(k=4, acceptance=0.7, draft_cost=0.1)
    length = RequestLength(prompt_tokens, output_tokens)
    plain, drafted = {}, {}
    for count in users:
        load = ClosedLoop([length] * (4 * count), count)
        plain[count] = simulate(card.deployment, card.config(), load)
        drafted[count] = simulate(card.deployment, card.config(), load, drafting=drafting, seed=seed)
    return OneUser(card, drafting, length, plain, drafted)


@dataclass(frozen=True, slots=True)
class LongContexts:
    """Example 3. cards: by the name of how K and V are stored; users and simulations by the same names.

    mha_bytes_per_token: in 16 bit, if each query head had K and V of its own; mha_users: how many would fit then.
    """

    num_tokens: int
    cards: dict[str, Card]
    users: dict[str, int]
    simulations: dict[str, Simulation]
    mha_bytes_per_token: int
    mha_users: int


def long_contexts(
    card: Card | None = None, *, prompt_tokens: int = 7_744, output_tokens: int = 256, num_requests: int = 60
) -> LongContexts:
    """Example 3: contexts of 8,000 tokens, with K and V in 16 bit and in FP8 (static scales: 1 byte a number).

    Grouped query heads are part of the model, not a switch: `mha_bytes_per_token` says what it would take without.
    """
    card = card or Card()
    num_tokens = prompt_tokens + output_tokens
    cards = {
        "16 bit": dataclasses.replace(card, bytes_per_element=2),
        "FP8": dataclasses.replace(card, bytes_per_element=1),
    }
    load = arrive_at_once(equal_lengths(num_requests, prompt_tokens, output_tokens))
    mha = card.budget.bytes_per_token * card.spec.num_query_heads // card.spec.num_kv_heads
    return LongContexts(
        num_tokens,
        cards,
        {name: one.users(num_tokens) for name, one in cards.items()},
        {name: simulate(one.deployment, one.config(), load) for name, one in cards.items()},
        mha,
        requests_that_fit(card.budget.kv_bytes, mha, num_tokens, block_size=card.block_size),
    )
