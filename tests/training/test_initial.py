"""The first weights are regressions, each on what the ones before it leave, and better than chance."""

import pytest
import torch

from servelab.speculative.head import initial_network
from servelab.training import initial
from servelab.training.initial import regress, regression_start
from servelab.training.objective import Measure, Target
from servelab.training.unroll import unroll


@pytest.fixture(scope="module")
def whole(target):
    return Target(target, torch.arange(target.config.vocab_size))


@pytest.fixture(scope="module")
def texts(shard):
    return list(shard.texts())


def distance(network, whole, texts):
    """Mean square of what the guesses lack of the target's normalised states, where the target wrote."""
    total = count = 0.0
    for text in texts:
        hidden = text.hidden.float()
        (guessed,) = unroll(network, hidden, whole.embeddings(text.token_ids), [len(text)], 1)
        states = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
        total += float((states - guessed)[text.reply].square().sum())
        count += int(text.reply.sum()) * hidden.shape[1]
    return total / count


def test_each_regression_explains_more(target, whole, texts, monkeypatch):
    lacking = []

    def spy(network, module, *rest):
        lacking.append(distance(network, whole, texts))
        return regress(network, module, *rest)

    monkeypatch.setattr(initial, "regress", spy)
    with torch.no_grad():
        network = regression_start(whole, texts, seed=0)
        lacking.append(distance(network, whole, texts))
    assert lacking[0] == pytest.approx(1.0, abs=0.01)  # nothing is guessed yet, and states have a mean square of 1
    assert lacking[0] > 1.2 * lacking[1] > lacking[2] > 1.02 * lacking[3]


def test_a_regression_is_the_best_there_is(target, whole, texts):
    """Any step away from the weights that it finds is worse, but for the ridge."""
    with torch.no_grad():
        network = regression_start(whole, texts, seed=0)
        best = distance(network, whole, texts)
        down = network.layer.feed_forward.down.weight
        found = down.clone()
        for seed in range(5):
            step = torch.randn(found.shape, generator=torch.Generator().manual_seed(seed))
            down.copy_(found + 0.05 * step)
            assert distance(network, whole, texts) > best


def test_it_is_better_than_chance_before_any_training(target, whole, texts):
    measure = Measure(whole, texts, k=2)
    started, random = measure(regression_start(whole, texts, 0)), measure(initial_network(target))
    assert started.per_position[0] > 0.05 > 5 * random.per_position[0]


def test_the_layer_begins_as_the_targets_last(target, whole, texts):
    network = regression_start(whole, texts, seed=0)
    last = target.network.layers[-1]
    assert network.layer.attention.qkv.weight.equal(last.attention.qkv.dense_weight())
    assert network.layer.feed_forward_norm.weight.equal(last.feed_forward_norm.weight)
    assert not network.layer.feed_forward.down.weight.equal(last.feed_forward.down.dense_weight())


def test_as_many_texts_are_fitted_as_have_the_tokens_for_it(whole, texts, monkeypatch):
    """The first ones, up to the one that passes the limit; what comes behind changes nothing."""
    monkeypatch.setattr(initial, "MOST_TOKENS", len(texts[0]) + 1)
    few, same = regression_start(whole, texts, 0), regression_start(whole, texts[:2], 0)
    assert torch.equal(few.fuse.weight, same.fuse.weight)
    monkeypatch.setattr(initial, "MOST_TOKENS", 10**9)
    assert not torch.equal(regression_start(whole, texts, 0).fuse.weight, few.fuse.weight)
