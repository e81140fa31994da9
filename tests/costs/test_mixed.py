"""A mixed step adds up to what its rows cost alone, with the weights read once."""

import pytest

from servelab.costs import (
    MODEL_SPECS,
    StepWork,
    decode_step_bytes,
    decode_step_flops,
    prefill_bytes,
    prefill_flops,
    step_bytes,
    step_flops,
    weight_bytes_read,
)

NAMES = ["SmolLM2-135M", "Llama-3-70B", "DeepSeek-V3"]


def work_of(*rows):
    work = StepWork()
    for row in rows:
        work.add(*row)
    return work


@pytest.mark.parametrize("name", NAMES)
def test_equal_decode_rows_cost_a_decode_step(name):
    spec, work = MODEL_SPECS[name], work_of(*[(1, 99)] * 8)
    assert step_bytes(spec, work, 1, 2) == pytest.approx(decode_step_bytes(spec, 8, 100, 1, 2))
    assert step_flops(spec, work) == pytest.approx(decode_step_flops(spec, 8, 100))


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_prompt_costs_a_prefill(name):
    spec, work = MODEL_SPECS[name], work_of((300, 0))
    assert step_bytes(spec, work) == pytest.approx(prefill_bytes(spec, 300))
    assert step_flops(spec, work) == pytest.approx(prefill_flops(spec, 300))


@pytest.mark.parametrize("name", NAMES)
def test_chunks_cost_what_the_prompt_does_but_for_the_cache_that_is_read_again(name):
    spec = MODEL_SPECS[name]
    whole, chunks = work_of((300, 0)), [work_of((200, 0, 0)), work_of((100, 200))]
    assert sum(step_flops(spec, chunk) for chunk in chunks) == pytest.approx(step_flops(spec, whole))
    assert sum(chunk.num_pairs for chunk in chunks) == whole.num_pairs == 300 * 301 // 2
    assert [chunk.num_context_tokens for chunk in chunks] == [200, 300]


def test_rows_share_the_weights_and_nothing_else():
    spec = MODEL_SPECS["SmolLM2-135M"]
    rows = [(1, 40), (30, 0), (5, 100, 5)]
    together, alone = work_of(*rows), [work_of(row) for row in rows]
    assert together.num_rows == 3
    assert step_flops(spec, together) == pytest.approx(sum(step_flops(spec, work) for work in alone))
    apart = sum(step_bytes(spec, work) for work in alone)
    assert step_bytes(spec, together) == pytest.approx(apart - 2 * weight_bytes_read(spec))


def test_a_verified_draft_needs_logits_for_each_of_its_tokens():
    spec = MODEL_SPECS["SmolLM2-135M"]
    more = step_flops(spec, work_of((5, 100, 5))) - step_flops(spec, work_of((5, 100, 1)))
    assert more == 4 * 2 * spec.vocab_size * spec.hidden_size


def test_an_embedding_of_another_size():
    """Of an untied model a step reads the output projection, and a row a token of the other table."""
    spec, work = MODEL_SPECS["Llama-3-70B"], work_of((3, 0))
    table = spec.vocab_size * spec.hidden_size
    more = step_bytes(spec, work, 1, 2, 2) - step_bytes(spec, work, 1, 2)
    assert more == table + 3 * spec.hidden_size
    assert step_bytes(spec, work, 1, 2, 1) == step_bytes(spec, work, 1, 2)
