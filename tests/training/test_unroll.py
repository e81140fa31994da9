"""All positions at once give what drafting gives one position at a time."""

import pytest
import torch

from servelab.ops import PackedCausalAttention
from servelab.speculative.head import initial_network
from servelab.training.unroll import before, unroll


@pytest.fixture
def network(target):
    return initial_network(target, seed=1).requires_grad_(False)


@pytest.fixture
def texts(target):
    """Two sequences, packed: states [T, E], embeddings [T, E], lengths."""
    generator = torch.Generator().manual_seed(0)
    E = target.config.hidden_size
    return torch.randn(14, E, generator=generator), torch.randn(14, E, generator=generator), [9, 5]


def draft(network, hidden, embeddings, last, num_steps):
    """Guesses of a draft that begins at token `last`: the plain way, everything computed again in each step."""
    states = list(before(hidden, [len(hidden)])[: last + 1])
    guesses = []
    for step in range(num_steps):
        length = last + 1 + step
        attention = PackedCausalAttention([length])
        guessed = network(torch.stack(states), embeddings[:length], torch.arange(length), attention)
        guesses.append(guessed[-1])
        states.append(guessed[-1])
    return guesses


def test_each_row_is_a_draft_of_its_own(network, texts):
    hidden, embeddings, lengths = texts
    steps = list(unroll(network, hidden, embeddings, lengths, num_steps=4))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        for last in range(length):
            wanted = draft(network, hidden[rows], embeddings[rows], last, min(4, length - last))
            for step, guess in enumerate(wanted):
                torch.testing.assert_close(steps[step][start + last + step], guess, atol=1e-5, rtol=1e-4)
        start += length


def test_a_draft_sees_neither_later_tokens_nor_another_text(network, texts):
    hidden, embeddings, lengths = texts
    steps = torch.stack(list(unroll(network, hidden, embeddings, lengths, num_steps=3)))
    other = hidden.clone(), embeddings.clone()
    for x in other:
        x[6:9] += 1.0
    changed = torch.stack(list(unroll(network, *other, lengths, num_steps=3)))
    same = (steps == changed).all(-1).all(0)
    assert same.tolist() == [True] * 6 + [False] * 3 + [True] * 5


def test_true_states_are_seen_up_to_where_the_draft_began(network, texts):
    """Row p of step 2 drafted tokens p-1 and p itself: the states of tokens p-2 and later are unknown to it."""
    hidden, embeddings, lengths = texts
    other = hidden.clone()
    other[3] += 1.0
    steps = [torch.stack(list(unroll(network, x, embeddings, lengths, num_steps=3))) for x in (hidden, other)]
    moved = (steps[0] != steps[1]).any(-1)[:, :9].int().argmax(1)
    assert moved.tolist() == [4, 5, 6]  # the state of token 3 enters with token 4, and two drafts later at 6


def test_gradients_reach_every_weight_through_the_steps(target, texts):
    network = initial_network(target, seed=1)
    last = list(unroll(network, *texts, num_steps=3))[-1]
    last.square().sum().backward()
    for name, parameter in network.named_parameters():
        if name != "norm.weight":  # of the logits, which are not asked for here
            assert parameter.grad is not None, name
            assert bool(parameter.grad.abs().sum() > 0), name


def test_the_row_before_stays_within_its_sequence():
    x = torch.arange(1.0, 6.0)[:, None]
    assert before(x, [3, 2]).flatten().tolist() == [0, 1, 2, 0, 4]
    assert before(x, [1, 4]).flatten().tolist() == [0, 0, 2, 3, 4]
