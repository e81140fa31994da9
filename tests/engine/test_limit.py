"""Speculation at the limits of memory and context, and over blocks of any size in any order."""

import random
from collections import OrderedDict

import pytest

from servelab.model import Model
from servelab.sampling import SamplingParams
from servelab.speculative.draft_cache import DraftCache

KINDS = ["n-gram", "draft model", "draft head"]
PROMPTS = [[10, 20, 30, 40, 50], [7] * 9, [1, 2, 3] * 7, [42]]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


@pytest.mark.parametrize("kind", [*KINDS, "target as draft"])
def test_the_context_is_filled_to_its_last_token_and_no_further(make_engine, speculation, greedy, monkeypatch, kind):
    """512 tokens, prompt 500, k = 8: exactly 12 tokens, and no position beyond 510 in either pass [gpt-fast#69]."""
    touched, drafted = [], [0]
    hidden, attention = Model.hidden, DraftCache.attention

    def watch(model, token_ids, positions, cache):
        touched.extend(positions)
        return hidden(model, token_ids, positions, cache)

    def watch_draft(cache, spans):
        drafted.extend(span.stop - 1 for span in spans)
        return attention(cache, spans)

    monkeypatch.setattr(Model, "hidden", watch)
    monkeypatch.setattr(DraftCache, "attention", watch_draft)
    engine = make_engine(num_blocks=128, speculative=speculation(kind, k=8))
    (output,) = engine.generate([[1] * 500], until(12))
    watched = max(touched), max(drafted)
    monkeypatch.undo()
    assert output.token_ids == greedy([1] * 500, 12)
    assert watched[0] == 510, "the last of the 512 tokens is never computed itself"
    assert watched[1] <= 510
    assert engine.speculation.drafted > 0


@pytest.mark.parametrize("kind", [*KINDS, "target as draft"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_blocks_of_any_size_may_lie_anywhere(make_engine, speculation, greedy, kind, block_size):
    """The draft's own keys and values lie under the same scattered tables [MinivLLM#87]."""
    engine = make_engine(block_size=block_size, num_blocks=256 // block_size, speculative=speculation(kind, k=3))
    blocks = list(range(engine.cache.pool.num_blocks))
    random.Random(block_size).shuffle(blocks)
    engine.cache.pool._free = OrderedDict.fromkeys(blocks)
    outputs = engine.generate(PROMPTS, until(20))
    assert [output.token_ids for output in outputs] == [greedy(prompt, 20) for prompt in PROMPTS]
    assert engine.speculation.drafted > 0
    engine.cache.check_integrity()
