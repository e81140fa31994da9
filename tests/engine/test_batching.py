"""What a request is batched with changes none of its greedy tokens [vllm#5898]."""

import random

import pytest
import torch

from servelab.model import toy_model as make_toy_model
from servelab.ops import backend
from servelab.sampling import SamplingParams

NUM_TOKENS = 16
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPTS = [[(first * 37 + position * 11) % 250 for position in range(4 * first + 1)] for first in range(8)]


def batches():
    """Of 1 to 8 of the prompts, three of each size, in any order."""
    draw = random.Random(0)
    return [draw.sample(range(8), size) for size in range(1, 9) for _ in range(3)]


def outputs(make_engine, model, prompts):
    return [output.token_ids for output in make_engine(model, num_blocks=128).generate(prompts, PARAMS)]


@pytest.mark.parametrize("choice", ["auto", "plain"])
def test_in_float32_the_tokens_are_the_same_in_any_batch(make_engine, monkeypatch, choice):
    """With compiled kernels where there are any, and with PyTorch alone."""
    monkeypatch.setattr(backend, "choice", choice)
    model = make_toy_model()
    alone = [outputs(make_engine, model, [prompt])[0] for prompt in PROMPTS]
    assert len(set(map(tuple, alone))) == 8
    for batch in batches():
        assert outputs(make_engine, model, [PROMPTS[i] for i in batch]) == [alone[i] for i in batch], batch


def test_in_bfloat16_the_tokens_part_only_where_two_logits_are_equal_within_rounding(make_engine, plain_model):
    """A bfloat16 has 8 bits: logits that the batch rounds differently differ by about 2^-7 of the largest."""
    plain_model.network.to(torch.bfloat16)
    assert plain_model.dtype == torch.bfloat16
    alone = [outputs(make_engine, plain_model, [prompt])[0] for prompt in PROMPTS]
    for batch in batches():
        for index, tokens in zip(batch, outputs(make_engine, plain_model, [PROMPTS[i] for i in batch]), strict=True):
            if tokens == alone[index]:
                continue
            place = next(i for i in range(NUM_TOKENS) if tokens[i] != alone[index][i])
            logits = plain_model.logits(PROMPTS[index] + tokens[:place])[-1]
            gap = (logits[tokens[place]] - logits[alone[index][place]]).abs()
            assert gap <= 2**-7 * logits.abs().max(), (batch, index, place)
