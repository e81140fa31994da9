"""`token_logprobs`: the model's own distribution, the chosen token and the most likely ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.sampling import Logprobs, token_logprobs


@settings(deadline=None)
@given(
    row=st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30, width=32)), min_size=1, max_size=12),
    n=st.integers(0, 14),
    data=st.data(),
)
def test_it_equals_a_slow_log_softmax(row, n, data):
    token_id = data.draw(st.integers(0, len(row) - 1))
    normaliser = max(row) + math.log(math.fsum(math.exp(logit - max(row)) for logit in row))
    (logprobs,) = token_logprobs(torch.tensor([row]), [token_id], n)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))[:n]
    assert logprobs.token_id == token_id
    assert logprobs.logprob == pytest.approx(row[token_id] - normaliser, abs=1e-4)
    assert list(logprobs.top_token_ids) == order, "in descending order, among equals the lowest id first"
    assert list(logprobs.top_logprobs) == pytest.approx([row[token] - normaliser for token in order], abs=1e-4)


def test_each_row_has_its_own_number():
    logits = torch.tensor([[0.0, 1.0, 2.0], [2.0, 2.0, 2.0]])
    none, two = token_logprobs(logits, [0, 2], [0, 2])
    assert none == Logprobs(token_id=0, logprob=none.logprob)
    assert two.top_token_ids == (0, 1)
    assert two.logprob == pytest.approx(-math.log(3))
    assert token_logprobs(torch.zeros(0, 3), [], 5) == []


def test_logits_of_16_bit_are_taken_as_float32():
    (logprobs,) = token_logprobs(torch.tensor([[1.0, 1.0, 1.0]]).bfloat16(), [2], 2)
    assert (logprobs.logprob, logprobs.top_token_ids) == (pytest.approx(-math.log(3), abs=1e-6), (0, 1))


def test_they_are_of_a_distribution():
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(2)) * 5
    for logprobs in token_logprobs(logits, [1, 2, 3, 4], 1000):
        assert math.fsum(map(math.exp, logprobs.top_logprobs)) == pytest.approx(1, abs=1e-4)
        assert logprobs.logprob == logprobs.top_logprobs[logprobs.top_token_ids.index(logprobs.token_id)]


@pytest.mark.parametrize(
    ("logits", "token_ids", "n"),
    [
        (torch.zeros(2, 3), [0], 1),
        (torch.zeros(2, 3), [0, 1], [1]),
        (torch.zeros(2, 3), [0, 1], -1),
        (torch.zeros(3), [0, 1, 2], 1),
    ],
)
def test_lists_of_other_lengths_are_refused(logits, token_ids, n):
    with pytest.raises(ValueError, match=r"expected logits \[N, V\], N token_ids and n >= 0 for all or each of them"):
        token_logprobs(logits, token_ids, n)


@pytest.mark.parametrize("token_id", [-1, 3])
def test_a_token_outside_of_the_vocabulary_is_refused(token_id):
    with pytest.raises(ValueError, match=rf"expected token_ids in 0\.\.2, got {token_id}"):
        token_logprobs(torch.zeros(1, 3), [token_id], 1)
