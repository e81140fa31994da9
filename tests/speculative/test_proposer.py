"""What holds for every proposer: the target's tokens, whatever is drafted. Driven by hand, without the engine."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from proposer_bench import BLOCK_SIZE, NO_DRAFT, Bench

from servelab.model import Model
from servelab.sampling import SamplingParams
from servelab.speculative import DraftHead, DraftModel, NGram, Proposer, Speculation, make_proposer

KINDS = ["ngram", "draft model", "draft head", "target as draft"]


@pytest.fixture
def make(target: Model, near_model: Model, head_path: Path) -> Callable[..., Proposer]:
    def make(kind: str, **options: object) -> Proposer:
        config: Speculation = {
            "ngram": lambda: NGram(**options),
            "draft model": lambda: DraftModel(near_model, **options),
            "draft head": lambda: DraftHead(head_path, **options),
            "target as draft": lambda: DraftModel(target, **options),
        }[kind]()
        return make_proposer(config, target)

    return make


def prompts() -> list[list[int]]:
    """Of several lengths; the first is one that the head was trained on, the last repeats itself."""
    draw = random.Random(0)
    first = [draw.randrange(256) for _ in range(6)]
    return [first, [7], [draw.randrange(256) for _ in range(17)], [3, 9, 4, 1] * 6]


def run(target: Model, proposer: Proposer | None, params: list[SamplingParams], chunk: int = 512) -> Bench:
    bench = Bench(target, proposer, chunk)
    for prompt, row_params in zip(prompts(), params, strict=True):
        bench.add(prompt, row_params)
    bench.run()
    return bench


GREEDY = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=33, repetition_penalty=1.3, logit_bias={5: 4.0}),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=24, frequency_penalty=0.4, min_tokens=20),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [512, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_greedy_tokens_are_those_of_plain_decoding(
    make: Callable[..., Proposer], target: Model, kind: str, chunk: int, adaptive: bool
) -> None:
    plain = [line.output for line in run(target, None, GREEDY).lines]
    bench = run(target, make(kind, adaptive=adaptive), GREEDY, chunk)
    assert [line.output for line in bench.lines] == plain
    assert bench.metrics.emitted >= sum(map(len, plain)) - len(plain)  # the first token comes of the prompt


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_accepted_now_and_then(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    """Or the tests above would hold for a proposer that never drafts."""
    bench = run(target, make(kind), GREEDY)
    assert bench.metrics.accepted >= 5
    if kind == "target as draft":
        assert bench.metrics.acceptance_rate == 1.0
    else:
        assert bench.metrics.accepted < bench.metrics.drafted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_no_draft_is_longer_than_k(make: Callable[..., Proposer], target: Model, kind: str, k: int) -> None:
    bench = run(target, make(kind, k=k), GREEDY)  # the bench holds every draft against max_drafts and k
    assert max(len(draft.token_ids) for draft in bench.drafts) == k


@pytest.mark.parametrize("kind", KINDS)
def test_no_position_beyond_the_limit_is_ever_touched(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    """gpt-fast#69: limit 32, prompt 28, k = 8 gives exactly 32 tokens, and no position from 32 on is touched."""
    proposer = make(kind, k=8)
    bench = Bench(target, proposer)
    line = bench.add([3, 9, 4, 1] * 7, SamplingParams(max_tokens=4, ignore_eos=True))
    bench.run()
    assert len(line.tokens) == 32
    assert max(bench.touched) < 32
    for storage in bench.storages():
        written = storage.keys(0).isfinite().all(dim=(2, 3)).nonzero()
        slots = {line.table.index(block) * BLOCK_SIZE + offset for block, offset in written.tolist()}
        assert max(slots) < 32


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_contains_the_end_token_ends_there(
    make: Callable[..., Proposer], target: Model, kind: str
) -> None:
    """transformers#47912: the output equals plain greedy decoding, and ends at the end token."""
    prompt = [3, 9, 4, 1] * 6
    free = Bench(target, None)
    options = {"max_tokens": 40, "ignore_eos": True, "logit_bias": dict.fromkeys(prompt, 8.0)}  # it says them again
    line = free.add(prompt, SamplingParams(**options))
    free.run()
    drafted = False
    for end in dict.fromkeys(line.output[1:20]):
        params = SamplingParams(**options, stop_token_ids=(end,))
        bench = Bench(target, make(kind))
        stopped = bench.add(prompt, params)
        bench.run()
        assert stopped.output == line.output[: line.output.index(end) + 1]
        drafted = drafted or any(end in draft.token_ids for draft in bench.drafts)
    assert drafted, "no draft contained an end"


SAMPLED = [
    SamplingParams(max_tokens=30, temperature=1.0, seed=1, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=0.7, top_k=5, seed=2),
    SamplingParams(max_tokens=30, seed=3),
    SamplingParams(max_tokens=30, temperature=1.5, top_p=0.8, presence_penalty=0.5, seed=4),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_fixes_the_output(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    outputs = [[line.output for line in run(target, make(kind), SAMPLED).lines] for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert outputs[0] != [line.output for line in run(target, make(kind), [*SAMPLED[1:], SAMPLED[0]]).lines]


@pytest.mark.parametrize("kind", KINDS)
def test_a_greedy_row_beside_sampled_ones_is_still_greedy(
    make: Callable[..., Proposer], target: Model, kind: str
) -> None:
    plain = run(target, None, SAMPLED).lines[2].output
    assert run(target, make(kind), SAMPLED).lines[2].output == plain


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_lies_in_a_cached_block_the_tokens_are_the_targets(
    make: Callable[..., Proposer], target: Model, kind: str
) -> None:
    """A prefix hit on blocks in which the draft's own keys and values are garbage, or NaN."""
    prompt, params = [3, 9, 4, 1] * 6, SamplingParams(max_tokens=20, ignore_eos=True)
    plain = Bench(target, None)
    plain.add(prompt, params)
    (wanted,) = plain.run()
    for garbage in (torch.nan, torch.inf, 1e30, 17.0):
        bench = Bench(target, make(kind))
        line = bench.add(prompt, params)
        bench.proposer.forget(line.request_id)
        bench.proposer.begin(line.request_id, 4 * BLOCK_SIZE)
        bench.compute([line], {line.request_id: NO_DRAFT}, [(0, 4 * BLOCK_SIZE)])
        line.num_computed = 4 * BLOCK_SIZE
        for storage in bench.storages()[1:]:
            for layer in range(storage.num_layers):
                storage.keys(layer)[line.table[:4]] = garbage
                storage.values(layer)[line.table[:4]] = garbage
        assert bench.run() == [wanted]


@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_request_begins_again(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    plain = [line.output for line in run(target, None, GREEDY).lines]
    proposer = make(kind)
    bench = Bench(target, proposer, chunk=5)
    lines = [bench.add(prompt, params) for prompt, params in zip(prompts(), GREEDY, strict=True)]
    for step in range(200):
        if all(line.done for line in lines):
            break
        bench.step()
        victim = lines[step % 4]
        if step % 3 == 0 and step < 12 and not victim.done:
            proposer.forget(victim.request_id)
            proposer.begin(victim.request_id, 0)
            victim.num_computed = 0
    assert [line.output for line in lines] == plain


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_goes_on_from_its_parents_blocks(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    """Two children of one prompt: full blocks shared, the last one copied, each with its own draws."""
    prompt = [3, 9, 4, 1, 3, 9, 4, 1, 3, 9]
    params = [SamplingParams(max_tokens=20, ignore_eos=True, temperature=t, seed=9) for t in (0.0, 1.0)]
    alone = Bench(target, None)
    alone.add(prompt, params[0])
    (wanted,) = alone.run()
    bench = Bench(target, make(kind), chunk=len(prompt) - 1)
    parent = bench.add(prompt, params[0], "parent")
    bench.step()
    child = bench.fork(parent, params[1], "child")
    assert bench.proposer.num_computed("child") == bench.proposer.num_computed("parent")
    bench.run()
    assert parent.output == wanted
    assert len(child.output) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_forgetting_leaves_nothing_behind(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    proposer = make(kind, adaptive=True)
    run(target, proposer, GREEDY)
    proposer.forget("0")  # again: left alone
    kept = [value for name, value in vars(proposer).items() if isinstance(value, dict)]
    kept += [value for name, value in vars(proposer.lengths).items() if isinstance(value, dict)]
    assert kept
    assert not any(kept)


@pytest.mark.parametrize("kind", ["draft model", "draft head"])
def test_the_bytes_told_are_the_bytes_taken(make: Callable[..., Proposer], target: Model, kind: str) -> None:
    proposer = make(kind)
    proposer.attach(10, 4)
    assert 10 * proposer.bytes_per_block(4) == proposer.cache.storage.memory()
