"""The loss falls to what it can be, and acceptance is counted as a decode would count it."""

import pytest
import torch
import torch.nn.functional as F

from servelab.speculative.head import initial_network
from servelab.training.corpus import Text
from servelab.training.objective import Measure, Target, draw_candidates, loss, positions_to_learn


@pytest.fixture(scope="module")
def whole(target):
    """The target with a vocabulary of all its tokens."""
    return Target(target, torch.arange(target.config.vocab_size))


@pytest.fixture(scope="module")
def texts(shard):
    return list(shard.texts())


def test_only_what_the_target_wrote_and_the_head_can_draft_is_learned():
    text = Text(torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([0, 1, 1, 1, 0, 1]).bool(), torch.zeros(6, 4), True)
    drafted = torch.tensor([True, True, True, True, False, True, True])
    # 1 and 5 are the prompt's; 3 is followed by 4, which cannot be drafted; 4 ends a reply and 6 the text
    assert positions_to_learn(text, drafted).tolist() == [False, True, False, True, False, True]


class Oracle(torch.nn.Module):
    """In a head's place: guesses the states it was told, a row a token, in every step."""

    def __init__(self, states, norm):
        super().__init__()
        self.states, self.norm = states, norm

    def forward(self, hidden, embeddings, positions, attention):
        return self.states

    def logits(self, guessed, rows):
        return rows(self.norm(guessed))


def test_a_head_that_knows_the_states_has_the_least_loss(target, whole, texts):
    hidden = torch.cat([text.hidden for text in texts[:3]]).float()
    known = loss(Oracle(hidden, target.network.norm), whole, texts[:3], num_steps=2, hidden_weight=1.0)
    learned = torch.cat([text.reply for text in texts[:3]])
    logits = target.project(hidden[learned])
    entropy = F.cross_entropy(logits, logits.softmax(-1))
    torch.testing.assert_close(known, entropy)
    worse = loss(Oracle(hidden.roll(1, 0), target.network.norm), whole, texts[:3], num_steps=2, hidden_weight=1.0)
    assert worse > known * 1.01


def test_candidates_are_the_texts_tokens_and_others(target, whole, texts):
    draw = [draw_candidates(whole, texts[:2], 60, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    used = set(torch.cat([text.token_ids for text in texts[:2]]).tolist())
    for places in draw:
        assert len(places) == len(set(places.tolist())) == 60
        assert used <= set(whole.vocabulary[places].tolist())
    assert draw[0].equal(draw[1])
    assert not draw[0].equal(draw[2])
    assert len(draw_candidates(whole, texts[:2], 10_000, torch.Generator())) == 257


def test_all_candidates_give_the_loss_without_any(target, whole, texts):
    network = initial_network(target)
    everything = torch.randperm(257)
    one = loss(network, whole, texts[:2], 2, 0.5)
    torch.testing.assert_close(one, loss(network, whole, texts[:2], 2, 0.5, everything))


def wrong_at(text, places, target):
    """States after which the target's next token is the text's own, but at `places` another."""
    hidden = text.hidden.float().clone()
    hidden[places] = -hidden[places]
    assert (
        target.project(hidden).argmax(-1) != target.project(text.hidden.float()).argmax(-1)
    ).nonzero().flatten().tolist() == places
    return hidden


def test_acceptance_by_hand(target, whole, texts):
    """Replies are rows 3 to 22. Drafts of 3 begin at 3, 7, 9 (after a wrong one at 8), 13 and 17; 21 has no room."""
    text = texts[0]
    network = Oracle(wrong_at(text, [8], target), target.network.norm)
    measured = Measure(whole, [text], k=3)(network)
    assert measured.per_position == (1.0, 4 / 5, 1.0)
    assert measured.tokens_per_step == (4 + 2 + 4 + 4 + 4) / 5


def test_a_wrong_first_token_costs_the_whole_draft(target, whole, texts):
    network = Oracle(wrong_at(texts[0], list(range(3, 23)), target), target.network.norm)
    measured = Measure(whole, texts[:1], k=3)(network)
    assert measured.per_position == (0.0, 0.0, 0.0)
    assert measured.tokens_per_step == 1.0


def test_tokens_that_cannot_be_drafted_are_never_accepted(target, texts):
    best = int(Target(target, torch.tensor([0])).best_tokens(texts[0].hidden[3:4]))
    network = Oracle(texts[0].hidden.float(), target.network.norm)
    without = Target(target, torch.tensor([token for token in range(257) if token != best]))
    assert (
        Measure(without, texts[:1], k=2)(network).tokens_per_step
        < Measure(Target(target, torch.arange(257)), texts[:1], k=2)(network).tokens_per_step
    )
