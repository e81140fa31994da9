"""`verify`: the rows of a step as they come, against sampling one position after the other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.sampling import (
    SamplingParams,
    TokenHistory,
    Verification,
    make_generator,
    probabilities,
    process_logits,
    sample,
    uniform,
    verify,
)

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0)
VOCABULARY = 6


def logits_of(tokens):
    """Rows whose most likely tokens these are."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), VOCABULARY).float() * 5


def generators(*seeds):
    return [make_generator(seed, "cpu") for seed in seeds]


@settings(deadline=None)
@given(data=st.data())
def test_greedy_keeps_what_the_target_would_have_chosen(data):
    drafts = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=4))
    choices = [data.draw(st.lists(st.integers(0, 2), min_size=len(d) + 1, max_size=len(d) + 1)) for d in drafts]
    results = verify(
        logits_of([token for row in choices for token in row]),
        drafts,
        [None] * len(drafts),
        [GREEDY] * len(drafts),
        generators(*range(len(drafts))),
    )
    for draft, choice, result in zip(drafts, choices, results, strict=True):
        expected = []
        for position, token in enumerate(choice):
            expected.append(token)
            if position < len(draft) and draft[position] != token:
                break
        assert result.token_ids == expected
        assert result.num_accepted == len(expected) - 1
        assert result.p == [float(a == b) for a, b in zip(draft, choice, strict=False)]
        assert (result.q, result.u) == ([1.0] * len(draft), [0.0] * len(draft))


def test_greedy_draws_nothing():
    generator, twin = generators(1, 1)
    verify(logits_of([0, 1, 2]), [[0, 1]], [None], [GREEDY], [generator])
    assert float(uniform(generator, 1)) == float(uniform(twin, 1))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SamplingParams(temperature=0.8, top_k=4, top_p=0.9, min_p=0.01)])
def test_without_a_draft_it_is_sample(params):
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(2))
    results = verify(logits, [[]] * 20, [None] * 20, [params] * 20, generators(*range(20)))
    tokens = sample(logits, [params] * 20, generators(*range(20)))
    assert results == [Verification(token_ids=[token], num_accepted=0, p=[], q=[], u=[]) for token in tokens]


def batch(seed):
    """Requests of every kind: greedy and sampled, filtered, penalised, with many, few and no draft tokens."""
    generator = torch.Generator().manual_seed(seed)
    params = [
        GREEDY,
        SamplingParams(temperature=0.9),
        SamplingParams(temperature=0.9, top_k=3),
        SamplingParams(temperature=1.2, repetition_penalty=1.4),
        SamplingParams(frequency_penalty=1.5),
        SamplingParams(temperature=0.7, min_tokens=3, logit_bias={2: 2.0}),
        SamplingParams(temperature=1.0),
    ]
    lengths = [3, 2, 4, 3, 2, 3, 0]
    drafts, draft_probs = [], []
    for row, length in enumerate(lengths):
        q = torch.softmax(torch.randn(length, VOCABULARY, generator=generator), dim=-1)
        named = row in (0, 2)
        drafts.append(torch.multinomial(q, 1, generator=generator).flatten().tolist() if length else [])
        draft_probs.append(None if named or not length else q)
    logits = torch.randn(sum(lengths) + len(lengths), VOCABULARY, generator=generator)
    histories = [TokenHistory([row % VOCABULARY, 1], [3] * (row % 3)) for row in range(len(lengths))]
    return logits, drafts, draft_probs, params, histories


def places(drafts):
    start = 0
    for draft in drafts:
        yield slice(start, start + len(draft) + 1)
        start += len(draft) + 1


@pytest.mark.parametrize("seed", range(10))
def test_a_request_fares_the_same_whatever_it_is_batched_with(seed):
    logits, drafts, draft_probs, params, histories = batch(seed)
    together = verify(logits, drafts, draft_probs, params, generators(*range(7)), histories, (5,))
    for row, place in enumerate(places(drafts)):
        one = slice(row, row + 1)
        (alone,) = verify(
            logits[place], drafts[one], draft_probs[one], params[one], generators(row), histories[one], (5,)
        )
        assert alone == together[row]


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_processed_with_the_draft_before_it(seed):
    """p is the target's probability after all processors, the draft tokens so far in the history; u decides."""
    logits, drafts, draft_probs, params, histories = batch(seed)
    before = logits.clone()
    results = verify(logits, drafts, draft_probs, params, generators(*range(7)), histories, (5,))
    assert torch.equal(logits, before)
    for row, place in enumerate(places(drafts)):
        result, draft, probs = results[row], drafts[row], draft_probs[row]
        accepted = 0
        for position, token in enumerate(draft):
            history = histories[row].after(draft[:position])
            one = logits[place][position : position + 1]
            p = probabilities(process_logits(one, [params[row]], [history], (5,)), [params[row]])
            q = 1.0 if probs is None or params[row].temperature == 0 else float(probs[position, token])
            assert result.p[position] == float(p[0, token])
            assert result.q[position] == q
            if accepted == position and result.u[position] * q < float(p[0, token]):
                accepted += 1
        assert result.num_accepted == accepted
        assert result.token_ids[:-1] == draft[:accepted]
        assert len(result.token_ids) == accepted + 1


def test_the_token_behind_the_draft_sees_it_too():
    """The bonus token: repetition counts the drafts, and the minimum length is reached by them."""
    logits = torch.tensor([[0.0, 2.0, 1.9], [0.0, 2.0, 1.9]])
    penalised = SamplingParams(repetition_penalty=2.0)
    (result,) = verify(logits, [[1]], [None], [penalised], generators(0), [TokenHistory([0], [])])
    assert result.token_ids == [1, 2]
    patient = SamplingParams(min_tokens=2, temperature=1e-6)
    (result,) = verify(logits, [[2]], [None], [patient], generators(0), [TokenHistory([0], [0])], end_token_ids=(1,))
    assert result.token_ids == [2, 1], "the end is masked for the second token and allowed for the third"


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1e-6)])
def test_an_end_token_in_a_draft_is_accepted_like_any_other(params):
    """The caller ends the output there; what was drafted behind it changes nothing [transformers#47912]."""
    end = 5
    (result,) = verify(logits_of([3, end, 1, 2]), [[3, end, 1]], [None], [params], generators(1), end_token_ids=(end,))
    assert result.token_ids == [3, end, 1, 2]
    (other,) = verify(logits_of([3, end, 1, 2]), [[3, end, 4]], [None], [params], generators(1), end_token_ids=(end,))
    assert other.token_ids[:2] == [3, end]


def test_a_draft_of_the_one_of_equals_that_top_k_leaves_out_is_rejected():
    """The rule of `sample`: of 1 and 2, both at the boundary of 2, 1 stays [flashinfer#3774]."""
    params = SamplingParams(temperature=1.0, top_k=2)
    logits = torch.tensor([0.4, 0.3, 0.3, 0.0]).log().expand(2, -1)
    for seed in range(20):
        for draft_probs in (None, torch.tensor([[0.0, 0.0, 1.0, 0.0]])):
            (result,) = verify(logits, [[2]], [draft_probs], [params], generators(seed))
            assert (result.p, result.num_accepted) == ([0.0], 0)
            assert result.token_ids[0] in (0, 1)


def test_a_sampled_request_takes_a_number_for_each_draft_token_and_one_more():
    generator, twin = generators(7, 7)
    q = torch.full((2, VOCABULARY), 1 / VOCABULARY)
    (result,) = verify(torch.zeros(3, VOCABULARY), [[0, 1]], [q], [SAMPLED], [generator])
    numbers = uniform(twin, 4).tolist()
    assert result.u == numbers[:2]
    assert float(uniform(generator, 1)) == numbers[3]


def test_greedy_looks_at_no_draft_probabilities():
    q = torch.full((1, VOCABULARY), math.nan)
    (result,) = verify(logits_of([1, 2]), [[1]], [q], [GREEDY], generators(0))
    assert result.token_ids == [1, 2]


def test_logits_of_16_bit_are_verified_too():
    (greedy, sampled) = verify(
        logits_of([1, 2, 3, 3]).bfloat16(),
        [[1], [3]],
        [None, None],
        [GREEDY, SamplingParams(temperature=1e-6, repetition_penalty=0.5)],
        generators(0, 1),
        [TokenHistory([0], [])] * 2,
    )
    assert (greedy.token_ids, sampled.token_ids) == ([1, 2], [3, 3])


def test_no_requests_give_nothing():
    assert verify(torch.zeros(0, 5), [], [], [], []) == []


def test_lists_of_other_lengths_are_refused():
    logits = torch.zeros(3, 5)
    with pytest.raises(ValueError, match=r"as many draft_probs, params and generators as drafts \(2\), got 1, 2 and 2"):
        verify(logits, [[1], []], [None], [GREEDY] * 2, generators(0, 1))
    with pytest.raises(ValueError, match="expected a history for each of 2 drafts, got 1"):
        verify(logits, [[1], []], [None] * 2, [GREEDY] * 2, generators(0, 1), [TokenHistory([], [])])
    with pytest.raises(
        ValueError, match=r"expected logits \[4, V\] for \[2, 0\] draft tokens and one more each, got \[3, 5\]"
    ):
        verify(logits, [[1, 2], []], [None] * 2, [GREEDY] * 2, generators(0, 1))
    with pytest.raises(ValueError, match=r"expected logits \[3, V\] .* got \[3\]"):
        verify(logits[:, 0], [[1], []], [None] * 2, [GREEDY] * 2, generators(0, 1))
    with pytest.raises(ValueError, match="expected a history for row 0"):
        verify(logits, [[1], []], [None] * 2, [SamplingParams(min_tokens=1), GREEDY], generators(0, 1))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_nan_is_refused_wherever_it_stands(params):
    for position in range(3):
        logits = torch.zeros(3, 5)
        logits[position, 2] = math.nan
        with pytest.raises(ValueError, match="expected a finite highest logit in every row"):
            verify(logits, [[0, 1]], [None], [params], generators(0))
