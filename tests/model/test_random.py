import dataclasses

import pytest
import torch

from servelab.model import random_model, toy_model


def test_the_same_seed_gives_the_same_model():
    ids = [1, 2, 3]
    assert torch.equal(toy_model(3).logits(ids), toy_model(3).logits(ids))
    assert not torch.equal(toy_model(3).logits(ids), toy_model(4).logits(ids))


def test_its_greedy_tokens_are_not_all_the_same(toy_model):
    """A model that says one token for ever would hide a lost or doubled token from every test."""
    ids = toy_model.tokenizer.encode("variety")
    for _ in range(30):
        ids.append(int(toy_model.logits(ids)[-1].argmax()))
    assert len(set(ids[7:])) > 10


def test_shape_of_the_toy(toy_model):
    config = toy_model.config
    assert (config.num_layers, config.num_query_heads, config.num_kv_heads) == (2, 4, 2)
    assert (toy_model.dtype, toy_model.device.type) == (torch.float32, "cpu")
    assert toy_model.tokenizer.vocab_size == config.vocab_size


def test_a_vocabulary_smaller_than_the_bytes_is_refused(toy_model):
    with pytest.raises(ValueError, match="at least 257, got 64"):
        random_model(dataclasses.replace(toy_model.config, vocab_size=64))
