"""Speculation through the engine: the joint distribution of the tokens is the target's own, by chi-square."""

import pytest
import torch

from servelab.model import toy_model as make_toy_model
from servelab.sampling import SamplingParams
from servelab.speculative import DraftModel
from servelab.speculative.drafting import Drafting
from servelab.trace import Verify

PROMPT = [10, 20, 30, 40, 50]
ALLOWED = range(40, 48)
BIAS = {token: -100.0 for token in range(257) if token not in ALLOWED}
NUM_OUTPUTS = 4_000
ALPHA = 1e-6


def params(seed):
    return SamplingParams(max_tokens=3, temperature=1.0, seed=seed, ignore_eos=True, logit_bias=BIAS)


@pytest.fixture(scope="module")
def expected(toy_model):
    """The target's probability of each pair of a second and a third token, [8, 8] float64."""
    allowed = torch.tensor(ALLOWED)

    def after(tokens):
        return torch.softmax(toy_model.logits(PROMPT + tokens)[-1][allowed].double(), dim=-1)

    pairs = torch.zeros(8, 8, dtype=torch.float64)
    for first, p_first in zip(ALLOWED, after([]), strict=True):
        seconds = after([first])
        thirds = torch.stack([after([first, second]) for second in ALLOWED])
        pairs += p_first * seconds[:, None] * thirds
    return pairs


def p_value(engine, expected):
    """The upper tail of chi-square. Pairs that are rarer than 5 in all outputs are counted as one."""
    outputs = engine.generate([PROMPT] * NUM_OUTPUTS, [params(seed) for seed in range(NUM_OUTPUTS)])
    counts = torch.zeros(8, 8, dtype=torch.float64)
    for output in outputs:
        _, second, third = output.token_ids
        counts[second - ALLOWED.start, third - ALLOWED.start] += 1
    wanted = expected * NUM_OUTPUTS
    often = wanted >= 5
    counts = torch.cat((counts[often], counts[~often].sum()[None]))
    wanted = torch.cat((wanted[often], wanted[~often].sum()[None]))
    statistic = ((counts - wanted) ** 2 / wanted).sum()
    assert len(wanted) > 10
    return float(torch.special.gammaincc(torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64), statistic / 2))


def drafting_engine(make_engine):
    draft = DraftModel(make_toy_model(3), k=2)
    return make_engine(num_blocks=256, max_num_seqs=64, prefix_caching=False, speculative=draft)


def test_drafted_tokens_come_as_often_as_the_target_says(make_engine, expected):
    """4,000 outputs, 64 at a time: rejection leaves the joint distribution as it is [vllm#40149]."""
    engine = drafting_engine(make_engine)
    assert p_value(engine, expected) > ALPHA
    assert 0.1 < engine.speculation.acceptance_rate < 0.9
    assert any(isinstance(event, Verify) for step in engine.trace.steps for event in step.events)


def test_another_requests_distribution_is_noticed(make_engine, expected, monkeypatch):
    """Planted: the probabilities of two neighbours' drafts change places."""
    drafts = Drafting.drafts

    def swapped(drafting):
        found = drafts(drafting)
        swap = [place for place, draft in enumerate(found) if draft.probs is not None]
        for one, other in zip(swap[::2], swap[1::2], strict=False):
            if len(found[one].token_ids) == len(found[other].token_ids):
                probs = found[one].probs, found[other].probs
                found[one] = type(found[one])(found[one].token_ids, probs[1])
                found[other] = type(found[other])(found[other].token_ids, probs[0])
        return found

    monkeypatch.setattr(Drafting, "drafts", swapped)
    assert p_value(drafting_engine(make_engine), expected) < ALPHA
