"""What the target writes is what it would write alone, with the states that belong to it."""

import itertools

import pytest
import torch

from servelab.ops import PackedCausalAttention
from servelab.training import text as text_module
from servelab.training.prompt import PromptWriter
from servelab.training.text import TextWriter, groups

pytestmark = pytest.mark.usefixtures("short_texts")


@pytest.fixture(scope="module")
def shard(target, short_texts):
    return TextWriter(target, seed=5).write(0)


def test_a_shard_depends_on_seed_and_number_alone(target, shard):
    writer = TextWriter(target, seed=5)
    second = writer.write(1)
    again = writer.write(0)
    assert again.token_ids.equal(shard.token_ids)
    assert again.hidden.equal(shard.hidden)
    assert not second.token_ids.equal(shard.token_ids)
    assert not TextWriter(target, seed=6).write(0).token_ids.equal(shard.token_ids)


def test_hidden_states_and_greedy_tokens_are_the_targets(target, shard):
    """Each text on its own, without engine or cache; bfloat16 keeps 8 bits of a state."""
    texts = list(shard.texts())
    assert len(texts) == 16
    assert 8 < sum(text.greedy for text in texts) < 16
    for text in texts[::3]:
        tokens = text.token_ids.tolist()
        hidden = target.hidden(tokens, range(len(tokens)), PackedCausalAttention([len(tokens)]))
        torch.testing.assert_close(text.hidden.float(), hidden, atol=0.05, rtol=0.01)
        follows = target.project(hidden).argmax(-1)[:-1][text.reply[1:]]
        assert follows.equal(text.token_ids[1:][text.reply[1:]]) == text.greedy


def test_talks_begin_with_the_prompt_and_some_go_on(target, monkeypatch):
    monkeypatch.setattr(text_module, "OWN_SHARE", 0.0)
    texts = list(TextWriter(target, seed=5).write(0).texts())
    prompts = itertools.islice(PromptWriter(5 * 1_000_003), 16)
    for text, prompt in zip(texts, prompts, strict=True):
        asked = target.tokenizer.encode(target.tokenizer.chat([{"role": "user", "content": prompt}]))[:256]
        assert text.token_ids[: len(asked)].tolist() == asked
        assert not text.reply[: len(asked)].any()
        assert text.reply[len(asked)]
        assert text.reply[-1]
    turns = [int((text.reply[1:] & ~text.reply[:-1]).sum()) for text in texts]
    assert set(turns) <= {1, 2}


def test_the_target_writes_most_prompts_itself(target, monkeypatch):
    """What it says where a user would speak, up to its end token; what has no end is not taken."""
    talks = text_module.Conversations(target, seed=0, max_tokens=512)
    put_together = [list(tokens) for tokens in talks.token_ids]
    which = talks.own()
    assert 16 * 0.4 < len(which) < 16
    assert bytes(talks.opening()).decode() == "user: "
    assert all(params.temperature == 1.0 for params in talks.question_params(which))
    least, most = text_module.OWN_TOKENS
    questions = [list(b"Why is snow white? ") for _ in which]
    questions[1] = [65] * most
    questions[2] = [32] * least
    talks.begin(questions, which)
    for number, index in enumerate(which):
        if number in (1, 2):
            assert talks.token_ids[index] == put_together[index]
            continue
        assert bytes(talks.token_ids[index]).decode() == "user: Why is snow white?\nassistant: "
        assert talks.replies[index] == [False] * len(talks.token_ids[index])
        assert talks.messages[index] == [{"role": "user", "content": "Why is snow white?"}]
    others = set(range(16)) - set(which)
    assert all(talks.token_ids[index] == put_together[index] for index in others)


def test_no_text_is_longer_than_the_context_and_none_keeps_an_end(target, shard):
    for text in shard.texts():
        assert len(text) <= 512
        assert 256 not in text.token_ids[text.reply].tolist()


def test_a_follow_up_is_asked_after_an_answer(target, monkeypatch):
    """The byte tokenizer's own talk: the tokens so far stay as they are, whatever they decode to."""
    monkeypatch.setattr(text_module, "FOLLOW_UP_SHARE", 1.0)
    talks = text_module.Conversations(target, seed=0, max_tokens=512)
    before = [list(tokens) for tokens in talks.token_ids]
    talks.answer([[72, 105]] * 16)
    asked = talks.ask_again()
    assert len(asked) > 10
    for index in asked:
        added = bytes(talks.token_ids[index][len(before[index]) :]).decode()
        assert added.startswith("Hi\nuser: ")
        assert added.endswith("\nassistant: ")
        assert talks.replies[index][len(before[index]) :][:3] == [True, True, False]


def test_a_talk_that_would_not_fit_ends(target, monkeypatch):
    monkeypatch.setattr(text_module, "FOLLOW_UP_SHARE", 1.0)
    talks = text_module.Conversations(target, seed=0, max_tokens=512)
    talks.answer([[72] * 250] * 16)
    lengths = [len(tokens) for tokens in talks.token_ids]
    talks.ask_again()
    assert all(len(now) <= 512 - 8 or len(now) == then for now, then in zip(talks.token_ids, lengths, strict=True))


def test_progress_is_told_as_it_comes(target, shard):
    told = []
    TextWriter(target, seed=5).write(0, told.append)
    assert len(told) > 10
    assert sum(told) >= shard.num_reply_tokens


def test_an_interrupted_shard_leaves_the_writer_as_it_was(target, shard):
    writer = TextWriter(target, seed=5)

    def stop(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(0, stop)
    assert writer.write(0).token_ids.equal(shard.token_ids)


def test_texts_are_grouped_up_to_a_number_of_tokens():
    assert list(groups([[0] * 5, [0] * 5, [0] * 20, [0]], 10)) == [[0, 1], [2], [3]]
    assert list(groups([], 10)) == []
