"""How a draft token is chosen: q is exactly what it was drawn from, through the processors of its request."""

import pytest
import torch
from torch import Tensor

from servelab.model import Model
from servelab.sampling import SamplingParams, TokenHistory, make_generator, probabilities, process_logits, verify
from servelab.speculative import DraftRow
from servelab.speculative.drafting import Drafting

V = 257


def row(tokens: list[int], num_prompt_tokens: int, seed: int = 0, max_drafts: int = 4, **params: object) -> DraftRow:
    options = SamplingParams(**{"max_tokens": 50, "ignore_eos": True, **params})
    return DraftRow("a", tokens, num_prompt_tokens, max_drafts, [], options, make_generator(seed, "cpu"))


def random_logits(rows: int, columns: int, seed: int) -> Tensor:
    return 2 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def draft_all(drafting: Drafting, columns: int, seed: int = 0) -> list[Tensor]:
    """Feed random logits until no row wants more; returns what was fed."""
    fed = []
    while drafting.active:
        fed.append(random_logits(len(drafting.active), columns, seed + len(fed)))
        drafting.extend(fed[-1].clone())
    return fed


PROCESSED = {
    "temperature": 0.8,
    "top_k": 20,
    "top_p": 0.9,
    "repetition_penalty": 1.4,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.6,
    "logit_bias": {3: 5.0},
    "min_tokens": 4,
}


@pytest.mark.parametrize("options", [{"temperature": 1.0}, PROCESSED])
@pytest.mark.parametrize("reduced", [False, True])
def test_q_is_what_the_target_would_draw_from_those_logits(target: Model, options: dict, reduced: bool) -> None:
    """Computed anew from the whole row, with the drafts before it in the history."""
    vocabulary = torch.arange(1, V, 3) if reduced else None
    columns = V if vocabulary is None else len(vocabulary)
    drafting = Drafting([row([4, 5, 6, 7], 2, **options)], [3], target, vocabulary)
    fed = draft_all(drafting, columns)
    (draft,) = drafting.drafts()
    params = drafting.rows[0].params
    assert len(draft.token_ids) == 3
    assert draft.probs.shape == (3, V)
    for place, logits in enumerate(fed):
        whole = torch.full((1, V), -torch.inf)
        whole[:, slice(None) if vocabulary is None else vocabulary] = logits
        history = TokenHistory([4, 5], [6, 7, *draft.token_ids[:place]])
        processed = process_logits(whole, [params], [history], target.tokenizer.eos_token_ids)
        assert torch.equal(draft.probs[place], probabilities(processed, [params])[0])
        assert draft.probs[place, draft.token_ids[place]] > 0


@pytest.mark.parametrize("reduced", [False, True])
def test_draft_tokens_come_as_often_as_q_says(target: Model, reduced: bool) -> None:
    """Chi-square with 2,000 draws over 12 tokens, alpha 1e-6: 48.9 for 11 degrees of freedom."""
    vocabulary = torch.arange(20, 32) if reduced else None
    logits = random_logits(1, 12, seed=3)
    if vocabulary is None:
        logits = torch.cat((logits, torch.full((1, V - 12), -torch.inf)), dim=1)
    generator = make_generator(11, "cpu")
    counts, q = torch.zeros(V), None
    for _ in range(2000):
        params = SamplingParams(temperature=1.0, ignore_eos=True)
        drafting = Drafting([DraftRow("a", [1], 1, 1, [], params, generator)], [1], target, vocabulary)
        drafting.extend(logits)
        (draft,) = drafting.drafts()
        counts[draft.token_ids[0]] += 1
        q = draft.probs[0]
    drawn = q > 0
    assert int(drawn.sum()) == 12
    assert counts[~drawn].sum() == 0
    expected = 2000 * q[drawn]
    assert float(((counts[drawn] - expected) ** 2 / expected).sum()) < 48.9


def test_greedy_drafts_take_the_most_likely_and_have_no_q(target: Model) -> None:
    drafting = Drafting([row([1], 1)], [2], target)
    fed = draft_all(drafting, V)
    (draft,) = drafting.drafts()
    assert draft.token_ids == [int(logits.argmax()) for logits in fed]
    assert draft.probs is None


def test_a_reduced_vocabulary_drafts_its_own_ids(target: Model) -> None:
    vocabulary = torch.tensor([10, 20, 30])
    drafting = Drafting([row([1], 1)], [1], target, vocabulary)
    drafting.extend(torch.tensor([[0.0, 1.0, 0.5]]))
    assert drafting.drafts()[0].token_ids == [20]


def test_a_bias_reaches_a_reduced_vocabulary_by_token_id(target: Model) -> None:
    """And one on a token that cannot be drafted changes nothing."""
    vocabulary = torch.tensor([10, 20, 30])
    drafting = Drafting([row([1], 1, logit_bias={10: 5.0, 11: 90.0})], [1], target, vocabulary)
    drafting.extend(torch.tensor([[0.0, 1.0, 0.5]]))
    assert drafting.drafts()[0].token_ids == [10]


def test_penalties_count_the_drafts_before(target: Model) -> None:
    drafting = Drafting([row([7, 9], 1, frequency_penalty=1.0)], [4], target)
    logits = torch.full((1, V), -9.0)
    logits[0, [9, 12]] = torch.tensor([2.5, 1.0])
    while drafting.active:
        drafting.extend(logits.clone())
    assert drafting.drafts()[0].token_ids == [9, 12, 9, 12]


def test_no_end_token_is_drafted_before_min_tokens(target: Model) -> None:
    drafting = Drafting([row([7, 8, 9], 1, min_tokens=4, ignore_eos=False)], [4], target)
    logits = torch.full((1, V), 0.0)
    logits[0, 256] = 5.0
    while drafting.active:
        drafting.extend(logits.clone())
    assert drafting.drafts()[0].token_ids == [0, 0, 256]


@pytest.mark.parametrize(
    ("options", "drafted"),
    [
        ({"ignore_eos": False}, [256]),
        ({"ignore_eos": True}, [256, 256, 256]),
        ({"ignore_eos": True, "stop_token_ids": (256,)}, [256]),
    ],
)
def test_nothing_is_drafted_behind_an_end(target: Model, options: dict, drafted: list[int]) -> None:
    drafting = Drafting([row([7], 1, **options)], [3], target)
    logits = torch.full((1, V), 0.0)
    logits[0, 256] = 5.0
    while drafting.active:
        drafting.extend(logits)
    assert drafting.drafts()[0].token_ids == drafted


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_logits_are_not_finite_drafts_no_further(target: Model, garbage: float, temperature: float) -> None:
    rows = [row([1], 1, temperature=temperature), row([1], 1, temperature=temperature)]
    drafting = Drafting(rows, [3, 3], target)
    assert drafting.extend(random_logits(2, V, 0)) == [0, 1]
    logits = random_logits(2, V, 1)
    logits[0, 5] = garbage
    assert drafting.extend(logits) == [1]
    assert drafting.extend(random_logits(1, V, 2)) == []
    first, second = drafting.drafts()
    assert (len(first.token_ids), len(second.token_ids)) == (1, 3)
    if temperature:
        assert (len(first.probs), len(second.probs)) == (1, 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_of_end_tokens_alone_drafts_nothing_before_min_tokens(target: Model, temperature: float) -> None:
    """Nothing is allowed: there is no distribution to draw from, and no NaN comes of it."""
    rows = [row([7], 1, min_tokens=4, ignore_eos=False, temperature=temperature), row([7], 1, temperature=temperature)]
    drafting = Drafting(rows, [3, 1], target, torch.tensor([256]))
    assert drafting.extend(torch.zeros(2, 1)) == []
    first, second = drafting.drafts()
    assert (first.token_ids, first.probs, second.token_ids) == ([], None, [256])
    assert second.probs is None or bool(second.probs.isfinite().all())


def test_each_row_has_its_own_length_draws_and_temperature(target: Model) -> None:
    rows = [
        row([1], 1, seed=1, temperature=1.0),
        row([2], 1),
        row([3], 1, seed=2, temperature=0.5),
        row([4], 1, seed=3, temperature=1.0),
    ]
    drafting = Drafting(rows, [1, 3, 0, 2], target)
    assert drafting.active == [0, 1, 3]
    fed = draft_all(drafting, V)
    assert [len(logits) for logits in fed] == [3, 2, 1]
    drafts = drafting.drafts()
    assert [len(draft.token_ids) for draft in drafts] == [1, 3, 0, 2]
    assert [None if draft.probs is None else len(draft.probs) for draft in drafts] == [1, None, None, 2]
    alone = Drafting([row([4], 1, seed=3, temperature=1.0)], [2], target)
    alone.extend(fed[0][2:])
    alone.extend(fed[1][1:])
    assert alone.drafts()[0].token_ids == drafts[3].token_ids
    assert torch.equal(alone.drafts()[0].probs, drafts[3].probs)


def test_greedy_rows_draw_nothing(target: Model) -> None:
    rows = [row([1], 1, seed=5)]
    draft_all(Drafting(rows, [3], target), V)
    assert torch.equal(rows[0].generator.get_state(), make_generator(5, "cpu").get_state())


def peaked(*shares: float) -> Tensor:
    """Logits [rows, V] whose highest probability is `share`; the rest is spread evenly."""
    logits = torch.zeros(len(shares), V)
    for place, share in enumerate(shares):
        logits[place, 10 + place] = torch.logit(torch.tensor(share)) + torch.tensor(V - 1.0).log()
    return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_grows_while_it_is_sure_enough_of_all_its_tokens(target: Model, temperature: float) -> None:
    """0.9 x 0.9 = 0.81 passes a bar of 0.6, and 0.81 x 0.7 = 0.57 does not: its token counts, and none comes after."""
    rows = [row([1], 1, seed, temperature=temperature) for seed in range(3)]
    drafting = Drafting(rows, [4, 4, 4], target, bars=[0.6, 0.95, 0.0])
    assert drafting.extend(peaked(0.9, 0.9, 0.2)) == [0, 2]
    assert drafting.extend(peaked(0.9, 0.2)) == [0, 1]
    assert drafting.extend(peaked(0.7, 0.2)) == [1]
    assert drafting.extend(peaked(0.2)) == []
    assert [len(draft.token_ids) for draft in drafting.drafts()] == [3, 1, 4]


def test_where_a_draft_stops_does_not_bend_the_distribution(target: Model) -> None:
    """A draft that is sure behind some tokens and not behind others: pairs of output tokens come as often as the
    target says (chi-square, 3,000 draws, alpha 1e-6)."""
    names = [3, 4, 6]
    vocabulary = torch.tensor(names)
    params = SamplingParams(max_tokens=9, temperature=1.0, ignore_eos=True)
    q = {5: [0.5, 0.3, 0.2], 3: [0.05, 0.9, 0.05], 4: [0.4, 0.3, 0.3], 6: [0.1, 0.1, 0.8]}
    p = {5: [0.3, 0.3, 0.4], 3: [0.3, 0.5, 0.2], 4: [0.6, 0.2, 0.2], 6: [0.2, 0.2, 0.6]}

    def target_logits(token: int) -> Tensor:
        row = torch.full((V,), -torch.inf)
        row[vocabulary] = torch.tensor(p[token]).log()
        return row

    generator, lengths = make_generator(3, "cpu"), set()
    counts = torch.zeros(3, 3)
    for _ in range(3000):
        draft_row = DraftRow("a", [1, 5], 1, 3, [], params, generator)
        drafting, last = Drafting([draft_row], [3], target, vocabulary, bars=[0.3]), 5
        while drafting.active:
            drafting.extend(torch.tensor([q[last]]).log())
            last = drafting.last_tokens[0] if drafting.active else 0
        (draft,) = drafting.drafts()
        lengths.add(len(draft.token_ids))
        logits = torch.stack([target_logits(token) for token in (5, *draft.token_ids)])
        rest = [draft.token_ids], [draft.probs], [params], [generator], [TokenHistory([1], [5])]
        (result,) = verify(logits, *rest)
        output = list(result.token_ids)
        if len(output) < 2:
            (after,) = verify(
                target_logits(output[0])[None], [[]], [None], [params], [generator], [TokenHistory([1], [5])]
            )
            output += after.token_ids
        counts[names.index(output[0]), names.index(output[1])] += 1
    expected = 3000 * torch.tensor([[p[5][i] * p[a][j] for j in range(3)] for i, a in enumerate(names)])
    assert lengths == {2, 3}
    assert float(((counts - expected) ** 2 / expected).sum()) < 43  # 8 degrees of freedom


def test_last_tokens_follow_the_rows_that_go_on(target: Model) -> None:
    drafting = Drafting([row([1], 1), row([2], 1)], [1, 2], target)
    logits = torch.zeros(2, V)
    logits[0, 40], logits[1, 50] = 1.0, 1.0
    assert drafting.extend(logits) == [1]
    assert drafting.last_tokens == [50]
    assert drafting.active == [1]


def test_drafted_and_verified_tokens_come_as_often_as_the_target_says(target: Model) -> None:
    """Two tokens in a row, drafted from few tokens by other logits and through all processors: chi-square against the
    target's own distribution of the pair, 1,500 draws, alpha 1e-6."""
    vocabulary = torch.tensor([3, 4, 6, 7])
    options = {"max_tokens": 9, "temperature": 0.9, "top_k": 3, "presence_penalty": 0.7, "logit_bias": {6: 0.5}}
    params = SamplingParams(ignore_eos=True, **options)
    p = torch.full((3, V), -torch.inf)
    p[:, 2:8] = random_logits(3, 6, seed=8)
    q = [random_logits(1, 4, seed=9), random_logits(1, 4, seed=10)]
    generator = make_generator(12, "cpu")
    counts = torch.zeros(V, V)
    for _ in range(1500):
        drafting = Drafting([DraftRow("a", [1, 5], 1, 2, [], params, generator)], [2], target, vocabulary)
        for logits in q:
            drafting.extend(logits)
        (draft,) = drafting.drafts()
        rest = [draft.token_ids], [draft.probs], [params], [generator], [TokenHistory([1], [5])]
        (result,) = verify(p, *rest)
        first, second = (*result.token_ids, None)[:2]
        if second is None:  # the draft ended at once: the next step draws the second token
            (after,) = verify(p[1:2], [[]], [None], [params], [generator], [TokenHistory([1], [5, first])])
            second = after.token_ids[0]
        counts[first, second] += 1
    firsts = probabilities(process_logits(p[:1], [params], [TokenHistory([1], [5])]), [params])[0]
    wanted = torch.zeros(V, V, dtype=torch.float64)
    for first in firsts.nonzero().flatten().tolist():
        processed = process_logits(p[1:2], [params], [TokenHistory([1], [5, first])])
        wanted[first] = firsts[first] * probabilities(processed, [params])[0]
    possible = wanted > 0
    assert int(possible.sum()) == 9
    assert counts[~possible].sum() == 0
    expected = 1500 * wanted[possible]
    assert float(((counts[possible] - expected) ** 2 / expected).sum()) < 42.7  # 8 degrees of freedom
