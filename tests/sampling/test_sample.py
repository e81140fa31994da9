"""`sample`: argmax, distribution, independence of the batch, and rows that cannot be sampled."""

import math

import pytest
import torch

from servelab.sampling import SamplingParams, make_generator, probabilities, sample

GREEDY = SamplingParams()


def draw(logits, *params, seeds=None):
    seeds = [row.seed for row in params] if seeds is None else seeds
    generators = [make_generator(seed, "cpu") for seed in seeds]
    return sample(logits, params, generators)


def test_greedy_takes_the_highest_and_among_equals_the_lowest_id():
    assert draw(torch.tensor([[1.0, 3.0, 2.0], [5.0, 7.0, 7.0]]), GREEDY, GREEDY) == [1, 1]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_gives_the_argmax(temperature):
    """Dividing by 1e-6 and less must give neither inf nor NaN [vllm#1623]."""
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)) * 30
    params = [SamplingParams(temperature=temperature, seed=row) for row in range(50)]
    assert draw(logits, *params) == logits.argmax(dim=-1).tolist()


def test_a_greedy_row_with_masked_logits_beside_a_sampling_row_stays_finite():
    """-inf is "not allowed", not a number to compute with [vllm#1623]."""
    logits = torch.full((3, 100), -math.inf)
    logits[0, 42] = 1.0
    logits[1, 7] = -1e30
    logits[2, 3:5] = 0.0
    sampled = SamplingParams(temperature=0.7, seed=1)
    for _ in range(20):
        tokens = draw(logits, GREEDY, sampled, sampled, seeds=[0, 1, 2])
        assert tokens[:2] == [42, 7]
        assert tokens[2] in (3, 4)
    assert torch.isfinite(probabilities(logits, [sampled] * 3)).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_maximum_is_refused(value, temperature):
    logits = torch.zeros(2, 10)
    logits[1, 4] = value
    params = SamplingParams(temperature=temperature)
    with pytest.raises(ValueError, match="expected a finite highest logit in every row, got"):
        draw(logits, params, params)


def test_a_row_in_which_nothing_is_allowed_is_refused():
    with pytest.raises(ValueError, match="expected a finite highest logit in every row"):
        draw(torch.full((1, 10), -math.inf), GREEDY)


def test_a_row_draws_the_same_whatever_it_is_batched_with():
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(3))
    params = [SamplingParams(temperature=0.5 + row / 4, seed=100 + row) for row in range(6)]
    alone = [draw(logits[row : row + 1], params[row])[0] for row in range(6)]
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1], [4, 0, 2, 1]):
        assert draw(logits[order], *[params[row] for row in order]) == [alone[row] for row in order]


def test_a_seed_repeats_and_another_seed_does_not():
    logits = torch.zeros(1, 10_000)
    params = SamplingParams(temperature=1.0)
    first, again, other = (draw(logits, params, seeds=[seed]) for seed in (1, 1, 2))
    assert first == again != other


def test_without_a_seed_two_requests_differ():
    logits = torch.zeros(2, 2**20)
    params = SamplingParams(temperature=1.0)
    first, second = draw(logits, params, params)
    assert first != second


def chi_square_p(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """The upper tail of chi-square with V - 1 degrees of freedom (regularised incomplete gamma)."""
    expected = probabilities * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    half_degrees = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_degrees, statistic / 2))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature):
    """20,000 draws; a right sampler fails one time in a million. The seed is fixed, so it does not flicker."""
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, 0.25]])
    generator = make_generator(11, "cpu")
    params = SamplingParams(temperature=temperature)
    tokens = sample(logits.expand(20_000, 8), [params] * 20_000, [generator] * 20_000)
    counts = torch.bincount(torch.tensor(tokens), minlength=8).double()
    assert chi_square_p(counts, torch.softmax(logits[0].double() / temperature, dim=-1)) > 1e-6
    wrong = torch.softmax(logits[0].double() / (temperature * 1.25), dim=-1)
    assert chi_square_p(counts, wrong) < 1e-6, "the test must notice a temperature that is 25 % off"


def test_rows_parameters_and_generators_must_match():
    with pytest.raises(ValueError, match=r"got logits \[2, 5\], 1 params"):
        sample(torch.zeros(2, 5), [GREEDY], [make_generator(0, "cpu")])


def test_no_rows_give_no_tokens():
    assert sample(torch.zeros(0, 5), [], []) == []


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"expected logits \[N, V\], V >= 1, .* got logits \[1, 0\]"):
        sample(torch.zeros(1, 0), [SamplingParams()], [make_generator(0, "cpu")])
