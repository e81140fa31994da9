"""`probabilities`: temperature, min_p, top_k, top_p and their ties, against slow references and transformers."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servelab.sampling import SamplingParams, probabilities
from servelab.sampling.distribution import NUCLEUS_TOKENS

GREEDY = SamplingParams()


def one(row, **params):
    params.setdefault("temperature", 1.0)
    return probabilities(torch.tensor([row]), [SamplingParams(**params)])[0]


def kept(row, **params):
    return one(row, **params).nonzero().flatten().tolist()


def slow(row, params):
    """One filter after the other over a sorted list, in the documented order, each over what is left."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    weight = {token: math.exp((row[token] - max(row)) / params.temperature) for token in order}
    if params.min_p > 0:
        # Where rounding would decide, any answer is right: the boundary has tests of its own.
        assume(all(abs(w - params.min_p) > 1e-6 or w == 1 for w in weight.values()))
        order = [token for token in order if weight[token] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total, reached = math.fsum(weight[token] for token in order), 0.0
        for place, token in enumerate(order):
            reached += weight[token]
            assume(abs(reached - params.top_p * total) > 1e-6 * total)
            if reached >= params.top_p * total:
                order = order[: place + 1]
                break
    total = math.fsum(weight[token] for token in order)
    return [weight[token] / total if token in order else 0.0 for token in range(len(row))]


LOGITS = st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30, width=32), st.just(-math.inf))


@settings(deadline=None, max_examples=300)
@given(
    row=st.lists(LOGITS, min_size=1, max_size=12).filter(lambda row: max(row) > -math.inf),
    temperature=st.sampled_from([0.3, 0.7, 1, 1.5, 4.0]),
    top_k=st.integers(0, 13),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1)),
)
def test_it_equals_the_slow_reference(row, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = torch.tensor([slow(row, params)])
    torch.testing.assert_close(probabilities(torch.tensor([row]), [params]), expected, rtol=1e-4, atol=1e-6)


def test_ties_at_the_top_k_boundary_go_to_the_lowest_id():
    """[.4, .3, .3, 0], k = 2: tokens 0 and 1, exactly k, wherever the equals stand [flashinfer#3774]."""
    row = [math.log(0.4), math.log(0.3), math.log(0.3), -math.inf]
    assert kept(row, top_k=2) == [0, 1]
    assert kept(row[::-1], top_k=2) == [1, 3]
    assert one(row, top_k=2).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert kept([1.0] * 6, top_k=4) == [0, 1, 2, 3]
    assert kept([0.0, 1.0, 0.0, 1.0, 0.0], top_k=3) == [0, 1, 3]
    assert probabilities(torch.tensor([[1.0] * 6]), [GREEDY]).tolist() == [[1, 0, 0, 0, 0, 0]], "greedy, and top_k = 1"
    assert kept([1.0] * 6, top_k=1) == [0]


def test_ties_at_the_nucleus_boundary_go_to_the_lowest_id():
    row = [math.log(0.4), math.log(0.3), math.log(0.3)]
    assert kept(row, top_p=0.6) == [0, 1]
    assert kept(row[::-1], top_p=0.6) == [0, 2]
    assert kept([2.0] * 4, top_p=0.5) == [0, 1], "two of four equals are exactly half"
    assert kept([2.0] * 4, top_p=0.51) == [0, 1, 2]


def test_the_nucleus_is_a_share_of_what_the_other_filters_leave():
    """After top_k = 2 the first token has 4/7 of what is left: enough for .55, though it has only .4 of all."""
    row = [math.log(0.4), math.log(0.3), math.log(0.3)]
    assert kept(row, top_p=0.55) == [0, 1]
    assert kept(row, top_p=0.55, top_k=2) == [0]
    assert kept([math.log(0.6), math.log(0.3), math.log(0.1)], top_p=0.65, min_p=0.4) == [0]


def test_min_p_is_a_ratio_to_the_most_likely_after_temperature():
    row = [0.0, math.log(0.5), math.log(0.3), -math.inf]
    assert kept(row, min_p=0.4) == [0, 1]
    assert kept(row, min_p=0.4, temperature=2.0) == [0, 1, 2], "at temperature 2 the third has sqrt(.3) = .55 of it"
    assert kept([1.0, 1.0, 0.999], min_p=1) == [0, 1]


def test_filters_never_take_everything():
    row = [0.0, 5.0, 5.0]
    assert kept(row, top_p=1e-9) == [1]
    assert kept(row, top_p=1e-300, min_p=1, top_k=1, temperature=1e-300) == [1]
    assert kept(row, top_p=1 - 2**-53) == [0, 1, 2]


def test_what_is_off_changes_nothing():
    row = torch.randn(1, 200, generator=torch.Generator().manual_seed(0))
    expected = torch.softmax(row.double(), dim=-1).float()
    for params in ({}, {"top_k": 200}, {"top_k": 10**9}, {"top_p": 1}, {"min_p": 0}):
        torch.testing.assert_close(probabilities(row, [SamplingParams(temperature=1, **params)]), expected)


@pytest.mark.parametrize("spread", [0.01, 3.0])
@pytest.mark.parametrize("vocab_size", [NUCLEUS_TOKENS - 1, NUCLEUS_TOKENS, NUCLEUS_TOKENS + 1, 49_152])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.95, 0.9999])
def test_small_and_large_nuclei_of_wide_rows(vocab_size, spread, top_p):
    """With a spread of .01 nearly half of all tokens, far more than the first look takes, make a nucleus of .5."""
    row = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(3)) * spread
    sums, order = torch.softmax(row[0].double(), dim=-1).sort(descending=True, stable=True)
    size = int((sums.cumsum(0) < top_p).sum()) + 1
    found = probabilities(row, [SamplingParams(temperature=1, top_p=top_p)])[0].nonzero().flatten()
    # float32 logits: over 49,152 nearly equal tokens the boundary may lie a token off.
    assert abs(len(found) - size) <= 1
    assert found.tolist() == order[: len(found)].sort().values.tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-40, 1e-300, 5e-324])
def test_a_tiny_temperature_is_one_hot_at_the_most_likely(temperature):
    """Dividing by 1e-6 and less must give neither inf nor NaN [vllm#1623]."""
    distribution = one([1.0, 3.0, -math.inf, 2.0], temperature=temperature)
    assert distribution.tolist() == [0, 1, 0, 0]
    assert one([3.0, 3.0, 1.0], temperature=temperature).tolist() == [0.5, 0.5, 0], "equals stay equal"


@pytest.mark.parametrize("temperature", [1e30, 1e300, 1.7e308])
def test_a_huge_temperature_levels_what_is_allowed(temperature):
    for params in ({}, {"min_p": 0.01}, {"top_p": 0.9999}, {"top_k": 3}):
        distribution = one([1.0, 3.0, -math.inf, 2.0], temperature=temperature, **params)
        assert distribution.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_masked_logits_have_no_probability_however_few_are_left():
    row = [-math.inf, 1.0, -math.inf, -math.inf]
    for params in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.5}, {"top_k": 2, "top_p": 0.5, "min_p": 0.1}):
        assert one(row, **params).tolist() == [0, 1, 0, 0]


def test_rows_do_not_see_each_other():
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(4))
    params = [
        GREEDY,
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2, top_k=7),
        SamplingParams(temperature=1, top_p=0.3),
        SamplingParams(temperature=1, min_p=0.2, top_k=50, top_p=0.8),
    ]
    together = probabilities(logits, params)
    for row in range(5):
        assert torch.equal(probabilities(logits[row : row + 1], params[row : row + 1])[0], together[row])
    order = [3, 1, 4]
    assert torch.equal(probabilities(logits[order], [params[row] for row in order]), together[order])
    assert together.dtype == torch.float32
    torch.testing.assert_close(together.sum(dim=1), torch.ones(5))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_maximum_is_refused(value, temperature):
    logits = torch.zeros(2, 4)
    logits[1, 2] = value
    with pytest.raises(ValueError, match=r"expected a finite highest logit in every row, got \[0\.0, (nan|inf)\]"):
        probabilities(logits, [SamplingParams(temperature=temperature)] * 2)


@pytest.mark.parametrize("shape", [(2, 4), (4,), (1, 0)])
def test_logits_have_a_row_for_each_of_the_params(shape):
    with pytest.raises(
        ValueError, match=r"expected logits \[N, V\], V >= 1, with N params, got logits .* and 1 params"
    ):
        probabilities(torch.zeros(shape), [GREEDY])


def test_transformers_keeps_the_same_tokens():
    """Its warpers, one after the other, where no two logits are equal."""
    from transformers.generation import logits_process as theirs

    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(6)) * 3
    cases = [
        ({"temperature": 0.7}, [theirs.TemperatureLogitsWarper(0.7)]),
        ({"temperature": 1.0, "top_k": 17}, [theirs.TopKLogitsWarper(17)]),
        ({"temperature": 1.0, "top_p": 0.83}, [theirs.TopPLogitsWarper(0.83)]),
        ({"temperature": 1.0, "min_p": 0.05}, [theirs.MinPLogitsWarper(0.05)]),
        (
            {"temperature": 1.4, "min_p": 0.02, "top_k": 40, "top_p": 0.9},
            [
                theirs.TemperatureLogitsWarper(1.4),
                theirs.MinPLogitsWarper(0.02),
                theirs.TopKLogitsWarper(40),
                theirs.TopPLogitsWarper(0.9),
            ],
        ),
    ]
    for params, warpers in cases:
        expected = logits.clone()
        for warper in warpers:
            expected = warper(None, expected)
        ours = probabilities(logits, [SamplingParams(**params)] * 20)
        torch.testing.assert_close(ours, torch.softmax(expected, dim=-1), rtol=1e-4, atol=1e-7)
