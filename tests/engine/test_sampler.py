"""`Sampler` in the engine: what a request asks for reaches the choice of its tokens, whatever it is batched with."""

import math

import pytest

from servelab.sampling import SamplingParams
from servelab.speculative import DraftModel, NGram
from servelab.trace import Preempt

PROMPT = [10, 20, 30, 40, 50]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


def tokens(outputs):
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("speculative", [None, NGram(), "same"])
def test_logprobs_are_the_models_own(make_engine, toy_model, greedy, n, speculative):
    """One for each token, as many of the most likely ones beside it, before penalties and temperature."""
    config = DraftModel(toy_model) if speculative == "same" else speculative
    params = until(8, logprobs=n, presence_penalty=1.0, logit_bias={3: 1.0})
    (output,) = make_engine(speculative=config).generate([PROMPT], params)
    assert [logprobs.token_id for logprobs in output.logprobs] == output.token_ids
    for count, logprobs in enumerate(output.logprobs):
        reference = toy_model.logits(PROMPT + output.token_ids[:count])[-1].log_softmax(-1)
        assert logprobs.logprob == pytest.approx(float(reference[logprobs.token_id]), abs=1e-3)
        top = reference.topk(n) if n else None
        assert logprobs.top_token_ids == (tuple(top.indices.tolist()) if n else ())
        assert logprobs.top_logprobs == pytest.approx(top.values.tolist() if n else [], abs=1e-3)


def test_logprobs_come_step_by_step_and_only_when_asked_for(make_engine):
    engine = make_engine()
    engine.add_request(PROMPT, until(3, logprobs=1), "A")
    engine.add_request(PROMPT, until(3), "B")
    counts = []
    while engine.has_unfinished():
        outputs = {output.request_id: output for output in engine.step()}
        counts.append(len(outputs["A"].logprobs))
        assert outputs["B"].logprobs is None
    assert counts == [1, 2, 3]


def test_each_answer_has_its_own_logprobs(make_engine):
    outputs = make_engine().generate([PROMPT], until(4, n=3, temperature=2.0, seed=3, logprobs=0))
    for output in outputs:
        assert [logprobs.token_id for logprobs in output.logprobs] == output.token_ids
        assert all(logprobs.logprob < 0 for logprobs in output.logprobs)


def test_a_minimum_length_keeps_the_end_away(make_engine, greedy):
    """The end tokens and stop tokens cannot be chosen before, a stop string before does not count."""
    expected = greedy(PROMPT, 12)
    stop = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(expected[3],))
    assert len(make_engine().generate([PROMPT], stop)[0].token_ids) == expected.index(expected[3]) + 1
    longer = SamplingParams(max_tokens=12, min_tokens=8, ignore_eos=True, stop_token_ids=(expected[3],))
    for speculative in (None, NGram()):
        (output,) = make_engine(speculative=speculative).generate([PROMPT], longer)
        assert expected[3] not in output.token_ids[:8]
        assert len(output.token_ids) >= 8


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.8},
        {"logit_bias": {65: 9.0}},
        {"temperature": 0.9, "top_k": 4, "seed": 1},
        {"temperature": 1.4, "top_p": 0.7, "seed": 2},
        {"temperature": 2.0, "min_p": 0.1, "seed": 3},
        {"temperature": 1.0, "seed": 4, "min_tokens": 9},
    ],
)
def test_a_request_chooses_alike_alone_in_company_and_preempted(make_engine, params):
    """Its history is its own, through chunks, preemption and the cache [vllm#5898]."""
    others = [([9] * 8, until(16)), (PROMPT, until(9, temperature=1.0, seed=9)), ([1], until(12, logprobs=1))]
    alone = make_engine().generate([PROMPT], until(14, **params))[0].token_ids
    for config in (
        {},
        {"num_blocks": 8},
        {"max_num_batched_tokens": 3},
        {"kv_cache": "contiguous", "reserve": "exact"},
    ):
        prompts, all_params = zip(*others, (PROMPT, until(14, **params)), strict=True)
        engine = make_engine(**config)
        outputs = engine.generate(list(prompts), list(all_params))
        preempted = any(isinstance(event, Preempt) for step in engine.trace.steps for event in step.events)
        assert preempted == ("num_blocks" in config)
        assert outputs[-1].token_ids == alone
    assert alone != make_engine().generate([PROMPT], until(14))[0].token_ids


def test_a_greedy_row_with_masked_logits_beside_a_sampling_one(make_engine, greedy):
    """-inf in one row leaves the other finite [vllm#1623]."""
    masked = {token: -100.0 for token in range(257) if token % 2}
    params = [until(8, logit_bias=masked), until(8, temperature=1.0, seed=1), until(8, temperature=1e-6, seed=1)]
    outputs = make_engine().generate([PROMPT] * 3, params)
    assert all(token % 2 == 0 for token in outputs[0].token_ids)
    assert outputs[2].token_ids == greedy(PROMPT, 8)
    assert outputs[1].token_ids == make_engine().generate([PROMPT], params[1])[0].token_ids


def test_a_bias_outside_of_the_vocabulary_is_refused(make_engine):
    engine = make_engine()
    with pytest.raises(ValueError, match=r"expected logit_bias in 0..256, got 257"):
        engine.add_request(PROMPT, until(1, logit_bias={257: 1.0}))
    assert not engine.has_unfinished()


@pytest.mark.parametrize(("speculative", "temperature"), [(None, 1.0), ("other", 1.0), ("other", 2.5)])
def test_with_a_seed_an_output_can_be_repeated(make_engine, speculative, temperature):
    """With speculation too: the draft draws from the request's own generator."""
    from servelab.model import toy_model

    config = DraftModel(toy_model(3), k=2) if speculative else None
    params = [until(10, temperature=temperature, seed=seed) for seed in (1, 2, 1)]
    first, second, third = tokens(make_engine(speculative=config).generate([PROMPT] * 3, params))
    assert first == third != second
    assert tokens(make_engine(speculative=config, num_blocks=9).generate([PROMPT] * 3, params))[1] != first


def test_log_probabilities_are_logarithms(make_engine):
    (output,) = make_engine().generate([PROMPT], until(1, logprobs=257))
    (logprobs,) = output.logprobs
    assert sum(math.exp(value) for value in logprobs.top_logprobs) == pytest.approx(1, abs=1e-5)
