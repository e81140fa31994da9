"""Shards survive the file, and the corpus keeps what it measures on apart."""

import pytest
import torch
from safetensors.torch import save_file

from servelab.training.corpus import HELD_OUT, Corpus, Shard, Text


def text(tokens, greedy=True):
    token_ids = torch.tensor(tokens)
    reply = torch.tensor([False] + [True] * (len(tokens) - 1))
    return Text(token_ids, reply, torch.randn(len(tokens), 4).to(torch.bfloat16), greedy)


def test_texts_come_back_from_the_file(tmp_path):
    texts = [text([1, 2, 3]), text([4, 5], greedy=False)]
    Shard.pack(texts, seconds=2.5).save(tmp_path / "a.safetensors")
    shard = Shard.load(tmp_path / "a.safetensors")
    assert shard.seconds == 2.5
    assert shard.num_reply_tokens == 3
    for one, other in zip(texts, shard.texts(), strict=True):
        assert one.token_ids.equal(other.token_ids)
        assert one.reply.equal(other.reply)
        assert one.hidden.equal(other.hidden)
        assert one.greedy == other.greedy


def test_an_interrupted_write_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    Shard.pack([text([1, 2, 3])]).save(path)

    def cut_off(tensors, partial, metadata):
        partial.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("servelab.training.corpus.save_file", cut_off)
    with pytest.raises(KeyboardInterrupt):
        Shard.pack([text([7, 8])]).save(path)
    assert Shard.load(path).token_ids.tolist() == [1, 2, 3]


def test_another_file_is_refused_by_name(tmp_path):
    save_file({"weights": torch.zeros(2)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"expected the tensors .* in .*a\.safetensors, got \['weights'\]"):
        Shard.load(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"whole safetensors file, got 4 bytes at .*b\.safetensors"):
        Shard.load(tmp_path / "b.safetensors")


def test_every_tenth_greedy_text_is_held_out():
    texts = [text([1, index], greedy=index % 2 == 0) for index in range(2 * HELD_OUT + 4)]
    corpus = Corpus([Shard.pack(texts[:7]), Shard.pack(texts[7:])])
    held = [int(held.token_ids[1]) for held in corpus.held_out]
    assert held == [2 * HELD_OUT - 2]
    assert [int(one.token_ids[1]) for one in corpus.train] == [
        index for index in range(2 * HELD_OUT + 4) if index != 2 * HELD_OUT - 2
    ]


def test_too_few_texts_are_refused():
    with pytest.raises(ValueError, match=r"at least 10 greedy texts .* got 3"):
        Corpus([Shard.pack([text([1, 2])] * 3 + [text([1, 2], greedy=False)] * 30)])


def test_the_vocabulary_is_what_was_written_most_then_the_lowest_ids():
    texts = [text([3, 9, 9, 9, 5, 5, 7])] * HELD_OUT  # 3 is the prompt's
    corpus = Corpus([Shard.pack(texts)])
    assert corpus.vocabulary(2, 12).tolist() == [5, 9]
    assert corpus.vocabulary(5, 12).tolist() == [0, 1, 5, 7, 9]


def test_an_epoch_has_every_text_once_in_its_own_order():
    corpus = Corpus([Shard.pack([text([1, index, 2]) for index in range(40)])])
    names = [int(one.token_ids[1]) for one in corpus.train]
    epochs = []
    for epoch in (0, 1):
        batches = list(corpus.batches(num_tokens=10, seed=0, epoch=epoch))
        assert all(len(batch) == 4 for batch in batches)
        epochs.append([int(one.token_ids[1]) for batch in batches for one in batch])
        assert sorted(epochs[-1]) == names
    assert epochs[0] != epochs[1]
    again = [int(one.token_ids[1]) for batch in corpus.batches(10, seed=0, epoch=1) for one in batch]
    assert again == epochs[1]
