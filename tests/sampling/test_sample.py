"""`sample`: argmax, draws, independence of the batch, generators, and rows that cannot be sampled."""

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.kernels.rejection_sample import WEIGHTS_AT_ONCE
from servelab.sampling import SamplingParams, TokenHistory, draw, make_generator, probabilities, sample, uniform

GREEDY = SamplingParams()


def choose(logits, *params, seeds=None):
    seeds = [row.seed for row in params] if seeds is None else seeds
    generators = [make_generator(seed, "cpu") for seed in seeds]
    return sample(logits, params, generators)


def test_greedy_takes_the_highest_and_among_equals_the_lowest_id():
    assert choose(torch.tensor([[1.0, 3.0, 2.0], [5.0, 7.0, 7.0]]), GREEDY, GREEDY) == [1, 1]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_gives_the_argmax(temperature):
    """Dividing by 1e-6 and less must give neither inf nor NaN [vllm#1623]."""
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)) * 30
    params = [SamplingParams(temperature=temperature, seed=row) for row in range(50)]
    assert choose(logits, *params) == logits.argmax(dim=-1).tolist()


def test_a_greedy_row_with_masked_logits_beside_a_sampling_row_stays_finite():
    """-inf is "not allowed", not a number to compute with [vllm#1623]."""
    logits = torch.full((3, 100), -math.inf)
    logits[0, 42] = 1.0
    logits[1, 7] = -1e30
    logits[2, 3:5] = 0.0
    sampled = SamplingParams(temperature=0.7, seed=1)
    for _ in range(20):
        tokens = choose(logits, GREEDY, sampled, sampled, seeds=[0, 1, 2])
        assert tokens[:2] == [42, 7]
        assert tokens[2] in (3, 4)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_maximum_is_refused_before_any_draw(value, temperature):
    logits = torch.zeros(2, 10)
    logits[1, 4] = value
    params = SamplingParams(temperature=temperature)
    generators = [make_generator(seed, "cpu") for seed in (1, 2)]
    states = [generator.get_state() for generator in generators]
    with pytest.raises(ValueError, match="expected a finite highest logit in every row, got"):
        sample(logits, [params, params], generators)
    assert all(torch.equal(generator.get_state(), state) for generator, state in zip(generators, states, strict=True))


def test_a_row_in_which_nothing_is_allowed_is_refused():
    with pytest.raises(ValueError, match="expected a finite highest logit in every row"):
        choose(torch.full((1, 10), -math.inf), GREEDY)


def test_a_row_draws_the_same_whatever_it_is_batched_with():
    """Greedy and sampled rows, filtered or not, in any order [vllm#5898]."""
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(3))
    wishes = ({}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.7}, {"temperature": 0})
    params = [
        SamplingParams(seed=100 + row, **{"temperature": 0.5 + row / 4, **wish}) for row, wish in enumerate(wishes)
    ]
    alone = [choose(logits[row : row + 1], params[row])[0] for row in range(6)]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1], [4, 0, 2, 1]):
        assert choose(logits[order], *[params[row] for row in order]) == [alone[row] for row in order]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 8, "top_p": 0.6}])
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(filters):
    """One uniform a token, and the tokens in the order of their ids."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(9)) * 2
    params = SamplingParams(temperature=0.8, **filters)
    cumulative = probabilities(logits, [params])[0].double().cumsum(0)
    generator, twin = make_generator(4, "cpu"), make_generator(4, "cpu")
    for _ in range(200):
        (token,) = sample(logits, [params], [generator])
        u = float(uniform(twin, 1))
        assert float(cumulative[token]) >= u - 1e-6
        assert token == 0 or float(cumulative[token - 1]) <= u + 1e-6


@pytest.mark.parametrize(("row", "kept"), [([0.4, 0.3, 0.3, 0.0], {0, 1}), ([0.0, 0.3, 0.3, 0.4], {1, 3})])
def test_of_equals_at_the_top_k_boundary_the_lowest_id_stays(row, kept):
    """The rule of every filter, drawn [flashinfer#3774]."""
    params = [SamplingParams(temperature=1.0, top_k=2, seed=seed) for seed in range(200)]
    logits = torch.tensor(row).log().expand(200, -1)
    assert set(choose(logits, *params)) == kept


def test_greedy_rows_leave_their_generator_alone_and_sampled_ones_take_one_number():
    generator, twin = make_generator(1, "cpu"), make_generator(1, "cpu")
    sample(torch.zeros(1, 5), [GREEDY], [generator])
    assert float(uniform(generator, 1)) == float(uniform(twin, 1))
    sample(torch.zeros(1, 5), [SamplingParams(temperature=1, top_k=2, top_p=0.5)], [generator])
    assert uniform(twin, 2)[1] == uniform(generator, 1)[0]


def test_params_that_look_back_get_the_history():
    logits = torch.tensor([[3.0, 2.9, 0.0]])
    params = SamplingParams(repetition_penalty=1.5, min_tokens=2)
    (token,) = sample(logits, [params], [make_generator(0, "cpu")], [TokenHistory([0], [])], end_token_ids=(1,))
    assert token == 0, "token 1 would win, but may not end the output yet"
    (token,) = sample(logits, [params], [make_generator(0, "cpu")], [TokenHistory([0], [2, 2])], end_token_ids=(1,))
    assert token == 1
    with pytest.raises(ValueError, match="expected a history for row 0"):
        sample(logits, [params], [make_generator(0, "cpu")])


@settings(deadline=None)
@given(
    weights=st.lists(st.one_of(st.just(0.0), st.floats(2.0**-100, 1, width=32)), min_size=1, max_size=20).filter(any),
    u=st.one_of(st.sampled_from([0.0, 0.5, 1 - 2**-53]), st.floats(0, 1, exclude_max=True)),
)
def test_a_weight_of_zero_is_never_drawn(weights, u):
    place = int(draw(torch.tensor([weights]), torch.tensor([u], dtype=torch.float64)))
    assert weights[place] > 0
    below = math.fsum(weights[:place])
    total = math.fsum(weights)
    assert below <= u * total * (1 + 1e-12)
    assert u * total <= (below + weights[place]) * (1 + 1e-12)


@pytest.mark.parametrize("shape", [(1, 8), (5, 7), (3, WEIGHTS_AT_ONCE // 2), (3, WEIGHTS_AT_ONCE + 1)])
def test_the_last_weight_is_the_end(shape):
    """u just below 1, over few and many rows at once, with zeros behind the last token that can be drawn."""
    num_rows, vocab_size = shape
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 1e-9
    ends = [vocab_size - 1 - row for row in range(num_rows)]
    for row, end in enumerate(ends):
        weights[row, end + 1 :] = 0
    assert draw(weights, torch.full((num_rows,), 1 - 2**-53, dtype=torch.float64)).tolist() == ends
    assert draw(weights, torch.zeros(num_rows)).tolist() == [0] * num_rows


def test_every_row_is_drawn_by_its_own_number():
    weights = torch.tensor([[1.0, 1.0], [3.0, 1.0], [0.0, 2.0]])
    assert draw(weights, torch.tensor([0.5, 0.7, 0.0])).tolist() == [1, 0, 1]
    assert draw(weights, torch.tensor([0.4, 0.8, 0.9])).tolist() == [0, 1, 1]


def test_a_seed_repeats_and_another_seed_does_not():
    logits = torch.zeros(1, 10_000)
    params = SamplingParams(temperature=1.0)
    first, again, other = (choose(logits, params, seeds=[seed]) for seed in (1, 1, 2))
    assert first == again != other


def test_without_a_seed_two_requests_differ():
    logits = torch.zeros(2, 2**20)
    params = SamplingParams(temperature=1.0)
    first, second = choose(logits, params, params)
    assert first != second


def test_no_two_seeds_and_no_two_outputs_share_their_draws():
    """Seeds that a 32-bit state would take for one, and outputs of neighbouring seeds."""
    numbers = [
        float(uniform(make_generator(seed, "cpu", index), 1))
        for seed in (0, 1, 2, 3, 2**32, 2**32 + 1, 2**40, 2**63 - 1)
        for index in range(4)
    ]
    assert len(set(numbers)) == len(numbers)
    assert float(uniform(make_generator(5, "cpu"), 1)) == float(uniform(make_generator(5, "cpu", 0), 1))


def test_logits_of_16_bit_are_sampled_too():
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 2).bfloat16()
    params = SamplingParams(temperature=1e-6, top_k=2, top_p=0.9, min_p=0.1, seed=1)
    assert choose(logits, GREEDY, params) == [1, 1]
    assert probabilities(logits, [GREEDY, params]).tolist() == [[0, 1, 0]] * 2


def shortest(action, runs=15) -> float:
    """Seconds of the fastest of several runs: what else the machine does only ever adds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def test_a_greedy_batch_costs_about_an_argmax_and_a_filtered_row_no_sort():
    logits = torch.randn(16, 49_152, generator=torch.Generator().manual_seed(0))
    generators = [make_generator(seed, "cpu") for seed in range(16)]
    greedy = shortest(lambda: sample(logits, [GREEDY] * 16, generators))
    assert greedy < 1.5 * shortest(lambda: logits.argmax(dim=-1))
    sorting = shortest(lambda: logits[:1].sort(stable=True, descending=True))
    for filters in ({"top_k": 50}, {"top_p": 0.2}, {"min_p": 0.1}, {"top_k": 50, "top_p": 0.9}):
        params = [SamplingParams(temperature=0.7, **filters)]
        assert shortest(lambda params=params: sample(logits[:1], params, generators[:1])) < sorting / 2


def test_rows_parameters_and_generators_must_match():
    with pytest.raises(ValueError, match=r"got logits \[2, 5\], 1 params"):
        sample(torch.zeros(2, 5), [GREEDY], [make_generator(0, "cpu")])
    with pytest.raises(ValueError, match="expected one generator for each of 2 params, got 1"):
        sample(torch.zeros(2, 5), [GREEDY] * 2, [make_generator(0, "cpu")])


def test_no_rows_give_no_tokens():
    assert sample(torch.zeros(0, 5), [], []) == []


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"expected logits \[N, V\], V >= 1, .* got logits \[1, 0\]"):
        sample(torch.zeros(1, 0), [SamplingParams()], [make_generator(0, "cpu")])
