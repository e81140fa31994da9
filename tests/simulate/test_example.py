"""The lesson's three examples: the numbers that it names, by arithmetic and by simulation."""

import dataclasses

import pytest

from servelab.costs import StepWork
from servelab.simulate import Card, Drafting, long_contexts, one_user, users_on_a_card


@pytest.fixture(scope="module")
def users():
    return users_on_a_card()


@pytest.fixture(scope="module")
def contexts():
    return long_contexts()


def test_the_memory_of_the_card_adds_up():
    budget = Card().budget
    parts = (
        budget.unusable_bytes,
        budget.layer_bytes,
        budget.embedding_bytes,
        budget.activation_bytes,
        budget.kv_bytes,
    )
    assert sum(parts) == budget.memory_bytes == 81_559 * 2**20
    assert budget.bytes_per_token == 327_680
    assert budget.layer_bytes == 70_553_706_496 - 2 * 128_256 * 8_192
    assert budget.embedding_bytes == 2 * 2 * 128_256 * 8_192
    assert budget.kv_bytes == pytest.approx(10e9, rel=0.03)


def test_the_clock_reads_the_bytes_that_the_memory_holds():
    """Of a decode step of one user: all weights, of the embedding table one row, of which 16 bits each."""
    card = Card()
    work = StepWork()
    work.add(1, 99)
    layers, table = card.budget.layer_bytes, 128_256 * 8_192
    num_bytes = layers + 2 * table + 2 * 8_192 + 100 * 327_680
    deployment = dataclasses.replace(card.deployment, efficiency=1.0)
    assert deployment.step_seconds(work) == pytest.approx(num_bytes / 3.35e12, rel=1e-6)


def test_reserving_gives_seven_users_and_paging_two_to_three_dozen(users):
    assert users.fit == {850: (7, 35), 1_270: (7, 24), 3_500: (7, 8)}


def test_the_simulator_serves_as_many_at_once(users):
    *tails, long = users.crowded
    for load in tails:
        held, running = load.paged.running_when_full.mean_tokens, load.paged.running_when_full.mean_requests
        assert 850 <= held <= 1_270
        assert 24 <= running <= 36
        assert running * held == pytest.approx(users.card.budget.kv_tokens, rel=0.06)
        assert load.reserved.peak_running == 7
        assert load.reserved.running_when_full.mean_requests == pytest.approx(7, abs=0.01)
        assert load.paged.output_tokens_per_s > 2 * load.reserved.output_tokens_per_s
    assert long.name == "all 3,500"
    assert long.paged.peak_running == 8
    assert long.paged.running_when_full.mean_requests == pytest.approx(8, abs=0.2)
    assert long.paged.output_tokens_per_s < 1.2 * long.reserved.output_tokens_per_s


def test_what_hangs_on_the_assumptions():
    """With what vLLM takes unless it is told otherwise, the same card serves two; 16-bit weights do not fit at all."""
    assert dataclasses.replace(Card(), usable_share=0.9).users(4_096, 4_096) == 2
    assert dataclasses.replace(Card(), step_tokens=8_192).users(1_270) < Card().users(1_270)
    with pytest.raises(ValueError, match="beside Llama-3-70B"):
        _ = dataclasses.replace(Card(), bytes_per_parameter=2).budget


def test_one_user_gains_and_a_full_card_loses():
    found = one_user(users=(1, 112))
    assert found.speedup(1) > 1.8
    assert found.speedup(112) < 1
    # Speculation begins after the first token.
    assert found.drafted[1].mean_ttft_s == pytest.approx(found.plain[1].mean_ttft_s)
    assert found.drafted[1].num_steps < found.plain[1].num_steps / 2
    useless = one_user(users=(1,), drafting=Drafting(4, 0.0, 0.1))
    assert useless.speedup(1) < 0.75


def test_long_contexts_with_fp8(contexts):
    assert contexts.num_tokens == 8_000
    assert contexts.users == {"16 bit": 3, "FP8": 7}
    for name, simulation in contexts.simulations.items():
        running = simulation.running_when_full.mean_requests
        assert running == pytest.approx(contexts.users[name], abs=0.25)
    budgets = [card.budget for card in contexts.cards.values()]
    assert budgets[0].kv_bytes == budgets[1].kv_bytes
    assert budgets[1].kv_tokens == pytest.approx(2 * budgets[0].kv_tokens, abs=1)
    assert contexts.mha_bytes_per_token == 8 * 327_680
    assert contexts.mha_users == 0


@pytest.mark.parametrize(
    ("values", "sentence"), [({"model": "GPT-5"}, "model of .*Llama-3-70B"), ({"gpu": "H1"}, "gpu of")]
)
def test_what_the_tables_lack(values, sentence):
    with pytest.raises(ValueError, match=f"expected {sentence}"):
        Card(**values)
