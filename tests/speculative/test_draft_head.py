"""The head drafts as it was trained: from true states where there are any, from its own while drafting."""

from pathlib import Path

import pytest
import torch
from proposer_bench import Bench

from servelab.model import Model
from servelab.ops import PackedCausalAttention
from servelab.sampling import SamplingParams, make_generator
from servelab.speculative import DraftHead, DraftRow, ObservedRow, make_proposer
from servelab.speculative.draft_head import START_COST
from servelab.speculative.head import load_head

PARAMS = SamplingParams(max_tokens=30, ignore_eos=True)
PROMPT = [3, 9, 4, 1, 7, 7, 2]


def first_guess(target: Model, head_path: Path, tokens: list[int], num_cached: int = 0) -> int:
    """The draft token behind `tokens`, by one pass over the whole sequence as in training."""
    head = load_head(head_path, target)
    attention = PackedCausalAttention([len(tokens)])
    hidden = target.hidden(tokens, range(len(tokens)), attention)
    before = torch.cat((torch.zeros(1, target.config.hidden_size), hidden[:-1]))
    if num_cached:
        before[num_cached] = 0
    embeddings = target.network.embedding(torch.tensor(tokens))
    guessed = head.network(before, embeddings, torch.arange(len(tokens)), attention)
    logits = head.network.norm(guessed[-1:]) @ target.network.head.dense_weight()[head.vocabulary].T
    return int(head.vocabulary[logits.argmax()])


@pytest.mark.parametrize("chunk", [512, 3])
@pytest.mark.parametrize("k", [1, 4])
def test_the_first_draft_token_is_that_of_a_pass_over_all_true_states(
    target: Model, head_path: Path, chunk: int, k: int
) -> None:
    """In every step, whatever was accepted in those before: no state of its own is left in the cache."""
    bench = Bench(target, make_proposer(DraftHead(head_path, k=k), target), chunk)
    line = bench.add(PROMPT, PARAMS)
    checked = 0
    while not line.done:
        tokens, seen = list(line.tokens), len(bench.drafts)
        bench.step()
        if len(bench.drafts) > seen and bench.drafts[-1].token_ids:
            assert bench.drafts[-1].token_ids[0] == first_guess(target, head_path, tokens)
            checked += 1
    assert checked > 5


def test_rows_of_a_batch_do_not_touch_each_other(target: Model, head_path: Path) -> None:
    """Drafts of different lengths, of rows that leave one after another, are those that each row gets alone."""
    states = target.hidden(list(range(40, 60)), range(20), PackedCausalAttention([20]))

    def drafts(names: list[str]) -> dict[str, list[int]]:
        proposer = make_proposer(DraftHead(head_path), target)
        proposer.attach(20, 4)
        rows = []
        for name in names:
            place, max_drafts = "abcd".index(name), (1, 4, 2, 3)["abcd".index(name)]
            length, table = 9 + place, [4 * place + block for block in range(4)]
            tokens = list(range(40, 40 + length))
            proposer.begin(name, 0)
            proposer.observe([ObservedRow(name, tokens, 0, length - 1, states[: length - 1], table)])
            params = SamplingParams(ignore_eos=True)
            rows.append(DraftRow(name, tokens, length, max_drafts, table, params, make_generator(0, "cpu")))
        return {row.request_id: draft.token_ids for row, draft in zip(rows, proposer.propose(rows), strict=True)}

    together = drafts(["a", "b", "c", "d"])
    assert [len(tokens) for tokens in together.values()] == [1, 4, 2, 3]
    for name, tokens in together.items():
        assert drafts([name]) == {name: tokens}


def test_states_wait_for_the_next_draft_unless_they_are_many(target: Model, head_path: Path) -> None:
    proposer = make_proposer(DraftHead(head_path, k=3), target)
    proposer.attach(20, 4)
    proposer.begin("a", 0)
    tokens, table = list(range(40, 60)), [3, 4, 5, 6, 7]
    states = target.hidden(tokens, range(20), PackedCausalAttention([20]))
    for start, stop, computed in ((0, 3, 0), (3, 4, 4), (4, 10, 10), (10, 12, 10), (12, 14, 14)):
        proposer.observe([ObservedRow("a", tokens, start, stop, states[start:stop], table)])
        assert proposer.num_computed("a") == computed
    params = SamplingParams()
    row = DraftRow("a", tokens[:15], 15, 3, table, params, make_generator(0, "cpu"))
    (draft,) = proposer.propose([row])
    assert draft.token_ids[0] == first_guess(target, head_path, tokens[:15])
    assert proposer.num_computed("a") == 15


def test_an_unknown_state_counts_as_zeros(target: Model, head_path: Path) -> None:
    """After a prefix hit of 8 tokens whose keys and values are there, the state of token 7 is not."""
    proposer = make_proposer(DraftHead(head_path), target)
    proposer.attach(20, 4)
    tokens, table = list(range(40, 60)), [3, 4, 5, 6, 7]
    states = target.hidden(tokens, range(20), PackedCausalAttention([20]))
    proposer.begin("first", 0)
    proposer.observe([ObservedRow("first", tokens, 0, 8, states[:8], table)])
    proposer.begin("second", 8)
    proposer.observe([ObservedRow("second", tokens, 8, 14, states[8:14], table)])
    row = DraftRow("second", tokens[:15], 15, 1, table, SamplingParams(), make_generator(0, "cpu"))
    assert proposer.propose([row])[0].token_ids == [first_guess(target, head_path, tokens[:15], num_cached=8)]


def test_states_that_do_not_follow_are_refused(target: Model, head_path: Path) -> None:
    proposer = make_proposer(DraftHead(head_path), target)
    proposer.attach(20, 4)
    proposer.begin("a", 4)
    with pytest.raises(ValueError, match="expected the states of request 'a' from token 4 on, got 6"):
        proposer.observe([ObservedRow("a", [1] * 8, 6, 8, torch.zeros(2, 32), [0, 1])])


def test_it_drafts_what_is_in_its_vocabulary_only(target: Model, head_path: Path) -> None:
    bench = Bench(target, make_proposer(DraftHead(head_path), target))
    bench.add(PROMPT, PARAMS)
    bench.add(PROMPT, SamplingParams(max_tokens=30, temperature=1.0, seed=1))
    bench.run()
    assert {token % 2 for draft in bench.drafts for token in draft.token_ids} == {0}
    sampled = [draft for draft in bench.drafts if draft.probs is not None]
    assert all(not draft.probs[:, 1::2].any() for draft in sampled)
    assert all(torch.allclose(draft.probs.sum(-1), torch.ones(len(draft.probs))) for draft in sampled)


def test_the_cost_of_a_draft_is_that_of_its_matrix_products_and_of_a_start(target: Model, head_path: Path) -> None:
    cost = make_proposer(DraftHead(head_path), target).lengths.draft_cost
    layer = 64 * 32 + 32 * (4 + 2 + 2) * 8 + 32 * 32 + 32 * 128 + 64 * 32
    assert cost == START_COST + (layer + 129 * 32) / target.num_parameters
