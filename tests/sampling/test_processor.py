"""`process_logits`: each processor, their order, against a slow reference and against transformers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from servelab.sampling import SamplingParams, TokenHistory, process_logits

VOCABULARY = 7
TOKENS = st.integers(0, VOCABULARY - 1)


def slow(logits, params, history, end_token_ids):
    """One row, token by token, in the documented order."""
    result = []
    for token, logit in enumerate(logits):
        logit += (params.logit_bias or {}).get(token, 0.0)
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(end_token_ids))
        if len(history.output_token_ids) < params.min_tokens and token in ends:
            logit = -math.inf
        if token in history.prompt_token_ids or token in history.output_token_ids:
            logit = logit * params.repetition_penalty if logit < 0 else logit / params.repetition_penalty
        count = history.output_token_ids.count(token)
        logit -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
        result.append(logit)
    return result


@st.composite
def rows(draw):
    logits = draw(
        st.lists(st.one_of(st.floats(-20, 20, width=32), st.just(-math.inf)), min_size=VOCABULARY, max_size=VOCABULARY)
    )
    params = SamplingParams(
        max_tokens=10,
        min_tokens=draw(st.integers(0, 4)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7, 2])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -1])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.25, -0.5])),
        logit_bias=draw(st.none() | st.dictionaries(TOKENS, st.floats(-100, 100, width=32), max_size=3)),
        stop_token_ids=tuple(draw(st.lists(TOKENS, max_size=2))),
        ignore_eos=draw(st.booleans()),
    )
    history = TokenHistory(draw(st.lists(TOKENS, max_size=6)), draw(st.lists(TOKENS, max_size=6)))
    return logits, params, history


@settings(deadline=None)
@given(batch=st.lists(rows(), min_size=1, max_size=4), end_token_ids=st.lists(TOKENS, max_size=2))
def test_every_row_equals_the_slow_reference(batch, end_token_ids):
    logits = torch.tensor([row[0] for row in batch])
    before = logits.clone()
    processed = process_logits(logits, [row[1] for row in batch], [row[2] for row in batch], end_token_ids)
    expected = torch.tensor([slow(*row, end_token_ids) for row in batch])
    torch.testing.assert_close(processed, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits, before), "the model's own logits are still wanted, for log-probabilities"


def test_the_same_tensor_where_nothing_is_asked_for():
    logits = torch.randn(3, 5)
    params = [SamplingParams(), SamplingParams(temperature=0.7, top_k=2, top_p=0.5, min_p=0.1), SamplingParams(seed=1)]
    assert process_logits(logits, params, None) is logits
    assert process_logits(logits, params, [TokenHistory([1], [2])] * 3, (0,)) is logits
    assert process_logits(logits, [*params[:2], SamplingParams(logit_bias={})], None) is logits


def test_one_row_asks_and_the_others_stay():
    logits = torch.randn(3, 5)
    params = [SamplingParams(), SamplingParams(logit_bias={4: 2.5}), SamplingParams()]
    processed = process_logits(logits, params, None)
    assert processed is not logits
    assert torch.equal(processed[[0, 2]], logits[[0, 2]])
    assert torch.equal(processed[1] - logits[1] > 1, torch.tensor([False] * 4 + [True]))


def test_penalties_count_the_output_and_repetition_the_prompt_too():
    logits = torch.tensor([[2.0, 2.0, 2.0, -2.0]])
    history = TokenHistory([1, 3], [2, 2])
    penalties = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    assert process_logits(logits, [penalties], [history]).tolist() == [[2.0, 2.0, 1.0, -2.0]]
    assert process_logits(logits, [SamplingParams(repetition_penalty=2)], [history]).tolist() == [[2.0, 1, 1, -4]]


def test_a_bias_comes_before_the_penalties():
    """A bias that lifts a logit above 0 makes the repetition penalty divide it."""
    params = SamplingParams(logit_bias={0: 3.0}, repetition_penalty=2.0)
    assert process_logits(torch.tensor([[-1.0, 0.5]]), [params], [TokenHistory([0], [])]).tolist() == [[1.0, 0.5]]


@pytest.mark.parametrize(("num_output", "masked"), [(0, True), (2, True), (3, False), (4, False)])
def test_no_end_before_the_minimum(num_output, masked):
    """The third token may be the end after two others are output and one more: min_tokens = 3 counts them all."""
    params = SamplingParams(min_tokens=3, stop_token_ids=(1,))
    history = TokenHistory([3], [0] * num_output)
    processed = process_logits(torch.zeros(1, 4), [params], [history], end_token_ids=(2,))
    assert torch.isinf(processed).tolist() == [[False, masked, masked, False]]


def test_who_ignores_the_end_tokens_may_choose_them():
    params = SamplingParams(min_tokens=3, stop_token_ids=(1,), ignore_eos=True)
    processed = process_logits(torch.zeros(1, 4), [params], [TokenHistory([3], [])], end_token_ids=(2,))
    assert torch.isinf(processed).tolist() == [[False, True, False, False]]


def test_no_penalty_makes_a_logit_infinite():
    """The widest values that `SamplingParams` admits leave every row something to choose."""
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    for penalty in (0.01, 100.0):
        params = SamplingParams(
            repetition_penalty=penalty,
            presence_penalty=2,
            frequency_penalty=2,
            logit_bias=dict.fromkeys(range(3), -100),
        )
        history = TokenHistory([0, 1, 2], [0, 1, 2] * 8000)
        assert torch.isfinite(process_logits(logits, [params], [history])).all()


@pytest.mark.parametrize("token_id", [-1, 4])
@pytest.mark.parametrize(
    ("params", "history"),
    [
        ({"logit_bias": {}}, ([], [])),
        ({"stop_token_ids": (), "min_tokens": 1}, ([], [])),
        ({"repetition_penalty": 1.1}, ([0, 1], [2])),
        ({"frequency_penalty": 1.0}, ([0, 1], [2])),
    ],
)
def test_a_token_outside_of_the_vocabulary_is_refused(token_id, params, history):
    """-1 would quietly count from the row's end."""
    params = dict(params)
    if "logit_bias" in params:
        params["logit_bias"] = {token_id: 1.0}
    if "stop_token_ids" in params:
        params["stop_token_ids"] = (token_id,)
    history = TokenHistory(history[0], [*history[1], token_id])
    if "min_tokens" in params:
        history = TokenHistory([0], [])
    with pytest.raises(ValueError, match=rf"expected token ids in 0\.\.3, got .*{token_id}"):
        process_logits(torch.zeros(1, 4), [SamplingParams(**params)], [history])


def test_what_depends_on_the_past_needs_it():
    with pytest.raises(ValueError, match="expected a history for row 1, whose params depend on the tokens so far"):
        process_logits(torch.zeros(2, 4), [SamplingParams(), SamplingParams(min_tokens=1)], None)


def test_lists_of_other_lengths_are_refused():
    logits = torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"got logits \[2, 4\], 1 params and None histories"):
        process_logits(logits, [SamplingParams()], None)
    with pytest.raises(ValueError, match=r"got logits \[2, 4\], 2 params and 1 histories"):
        process_logits(logits, [SamplingParams()] * 2, [TokenHistory([], [])])
    with pytest.raises(ValueError, match=r"expected logits \[N, V\] .* got logits \[4\]"):
        process_logits(logits[0], [SamplingParams()] * 4, None)


def test_transformers_does_the_same():
    """Repetition penalty, minimum length and single-token bias are its processors of the same names."""
    from transformers.generation import logits_process as theirs

    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(5)) * 4
    prompt, output = [3, 7, 7, 20, 49], [8, 3, 30]
    ids = torch.tensor([prompt + output])
    cases = [
        (SamplingParams(repetition_penalty=1.3), theirs.RepetitionPenaltyLogitsProcessor(1.3)),
        (
            SamplingParams(min_tokens=4),
            theirs.MinNewTokensLengthLogitsProcessor(len(prompt), 4, eos_token_id=[2, 9]),
        ),
        (
            SamplingParams(min_tokens=3),
            theirs.MinNewTokensLengthLogitsProcessor(len(prompt), 3, eos_token_id=[2, 9]),
        ),
        (SamplingParams(logit_bias={4: 1.5, 8: -30.0}), theirs.SequenceBiasLogitsProcessor([[[4], 1.5], [[8], -30.0]])),
    ]
    for params, processor in cases:
        ours = process_logits(logits, [params], [TokenHistory(prompt, output)], end_token_ids=(2, 9))
        torch.testing.assert_close(ours, processor(ids, logits.clone()))
