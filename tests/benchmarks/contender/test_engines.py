"""Our engine and transformers as contenders, on networks small enough to run here."""

import pytest

from benchmarks.contender.protocol import Setup, Task
from benchmarks.contender.servelab import Servelab

SETUP = Setup("toy", "float32", threads=1, max_num_seqs=4, max_model_len=128, token_budget=24)
TASK = Task([[1 + number] * 20 for number in range(3)], decode_steps=5)


def test_our_engine_computes_every_prompt_and_lets_go_of_all(toy_model):
    contender = Servelab(SETUP)
    for _ in range(2):  # the second time nothing may come from a cache
        timing = contender.run(TASK)
        assert len(timing.step_s) == 5
        # 60 prompt tokens, 24 a step: the first request has decoded twice when the last one is prefilled.
        assert [len(tokens) for tokens in timing.token_ids] == [8, 7, 6]
        assert not contender.engine.has_unfinished()
        assert contender.engine.cache.pool.num_free == contender.engine.cache.pool.num_blocks
    assert set(contender.versions) == {"servelab", "torch"}


@pytest.mark.parametrize("kind", ["Static", "Continuous"])
def test_transformers_decodes_as_many_steps(kind):
    from benchmarks.contender import transformers

    contender = getattr(transformers, kind)(SETUP)
    timing = contender.run(TASK)
    assert len(timing.step_s) == 5
    assert timing.prefill_s > 0
    assert all(len(tokens) >= 6 for tokens in timing.token_ids)
