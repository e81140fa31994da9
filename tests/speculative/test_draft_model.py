"""The draft model keeps level with its target."""

from dataclasses import replace

import torch
from proposer_bench import BLOCK_SIZE, Bench

from servelab.model import Model, random_model, skip_layers
from servelab.ops import PackedCausalAttention
from servelab.sampling import SamplingParams
from servelab.speculative import DraftModel, make_proposer

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPT = [3, 9, 4, 1] * 5


class KeptKeys:
    """Attention over one whole sequence that keeps what the layers would store."""

    def __init__(self, length: int) -> None:
        self.attention = PackedCausalAttention([length])
        self.keys: list[torch.Tensor] = []

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.keys.append(k)
        return self.attention(layer, q, k, v)


def test_its_keys_are_those_of_a_plain_pass_over_the_same_tokens(target: Model, near_model: Model) -> None:
    """After accepted and rejected drafts alike, for all tokens that it says it has computed."""
    bench = Bench(target, make_proposer(DraftModel(near_model), target), chunk=7)
    line = bench.add(PROMPT, PARAMS)
    compared = 0
    while True:
        bench.step()
        if line.done:
            break
        computed = bench.proposer.num_computed("0")
        kept = KeptKeys(computed)
        near_model.hidden(line.tokens[:computed], range(computed), kept)
        for layer in range(near_model.config.num_layers):
            stored = bench.proposer.cache.storage.keys(layer)[line.table].flatten(0, 1)[:computed]
            torch.testing.assert_close(stored, kept.keys[layer], atol=1e-4, rtol=1e-4)
        compared += 1
    assert compared > 5
    assert 0 < bench.metrics.accepted < bench.metrics.drafted


def test_it_is_never_behind_by_more_than_k(target: Model, near_model: Model) -> None:
    """Also where nothing is drafted for a while."""
    bench = Bench(target, make_proposer(DraftModel(near_model, k=3, adaptive=True), target))
    line = bench.add(PROMPT, PARAMS)
    bench.proposer.lengths._length("0").accepted = 0.0
    behind = []
    while not line.done:
        bench.step()
        if not line.done:
            behind.append(line.num_computed - bench.proposer.num_computed("0"))
    assert max(behind) == 3
    assert min(behind) == 0


def test_it_drafts_no_further_than_its_own_context(target: Model) -> None:
    small = random_model(replace(target.config, max_context=len(PROMPT) + 6), seed=5)
    plain = Bench(target, None)
    plain.add(PROMPT, PARAMS)
    (wanted,) = plain.run()
    bench = Bench(target, make_proposer(DraftModel(small), target))
    line = bench.add(PROMPT, PARAMS)
    assert bench.run() == [wanted]
    written = bench.proposer.cache.storage.keys(0)[line.table].flatten(0, 1).isfinite().all(dim=(1, 2))
    assert int(written.sum()) == len(PROMPT) + 6
    assert 1.0 < bench.metrics.tokens_per_step < 3


def test_a_prompt_beyond_its_context_is_not_drafted_for(target: Model) -> None:
    small = random_model(replace(target.config, max_context=8), seed=5)
    bench = Bench(target, make_proposer(DraftModel(small), target))
    bench.add(PROMPT, PARAMS)
    bench.run()
    assert bench.metrics.drafted == 0


def test_layers_left_out_make_a_draft(target: Model) -> None:
    draft = skip_layers(target, [0, 2])
    plain = Bench(target, None)
    plain.add(PROMPT, PARAMS)
    proposer = make_proposer(DraftModel(draft), target)
    bench = Bench(target, proposer)
    bench.add(PROMPT, PARAMS)
    assert bench.run() == plain.run()
    heads, dim = target.config.num_kv_heads, target.config.head_dim
    assert proposer.bytes_per_block(BLOCK_SIZE) == 2 * 2 * BLOCK_SIZE * heads * dim * 4
    assert 0.3 < proposer.lengths.draft_cost < 1
