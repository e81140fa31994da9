"""What the target writes is what it would write alone, with the states that belong to it."""

import pytest
import torch

from servelab.ops import PackedCausalAttention
from servelab.trace import Preempt
from servelab.training import text as text_module
from servelab.training.prompt import PromptWriter
from servelab.training.text import Talk, TextWriter

pytestmark = pytest.mark.usefixtures("short_texts")
END = 256


@pytest.fixture(scope="module")
def shard(target, short_texts):
    return TextWriter(target, seed=5).write(0)


@pytest.fixture
def talk(target, monkeypatch):
    """One that the user begins, and in which it asks again."""
    monkeypatch.setattr(text_module, "OWN_SHARE", 0.0)
    monkeypatch.setattr(text_module, "FOLLOW_UP_SHARE", 1.0)
    return Talk(target, seed=0, max_tokens=512)


def test_a_shard_depends_on_seed_and_number_alone(target, shard):
    writer = TextWriter(target, seed=5)
    second = writer.write(1)
    again = writer.write(0)
    assert again.token_ids.equal(shard.token_ids)
    assert again.hidden.equal(shard.hidden)
    assert not second.token_ids.equal(shard.token_ids)
    assert not TextWriter(target, seed=6).write(0).token_ids.equal(shard.token_ids)


def test_shards_of_two_seeds_share_no_talk(target):
    first, second = TextWriter(target, seed=0), TextWriter(target, seed=1)
    assert first.write(0).token_ids[:200].tolist() != second.write(0).token_ids[:200].tolist()


def test_hidden_states_and_greedy_tokens_are_the_targets(target, shard):
    """Each text on its own, without engine or cache; bfloat16 keeps 8 bits of a state."""
    texts = list(shard.texts())
    assert len(texts) == 16
    assert 8 < sum(text.greedy for text in texts) < 16
    for text in texts:
        tokens = text.token_ids.tolist()
        hidden = target.hidden(tokens, range(len(tokens)), PackedCausalAttention([len(tokens)]))
        torch.testing.assert_close(text.hidden.float(), hidden, atol=0.05, rtol=0.01)
        follows = target.project(hidden).argmax(-1)[:-1][text.reply[1:]]
        assert follows.equal(text.token_ids[1:][text.reply[1:]]) == text.greedy


def test_texts_are_whole_but_for_the_last_token(target, monkeypatch):
    """A preempted talk, and one whose beginning another talk shares, have all their states too."""
    monkeypatch.setattr(text_module, "FOLLOW_UP_SHARE", 1.0)
    writer = TextWriter(target, seed=2)
    pool = writer.engine.cache.pool
    held = [pool.allocate() for _ in range(pool.num_free - 40)]  # as if the pool were small
    talks = []
    monkeypatch.setattr(text_module, "Talk", lambda *arguments: talks.append(Talk(*arguments)) or talks[-1])
    shard = writer.write(0)
    assert any(isinstance(event, Preempt) for step in writer.engine.trace.steps for event in step.events)
    for text, talk in zip(shard.texts(), talks, strict=True):
        assert len(talk.token_ids) - 1 <= len(text) <= len(talk.token_ids)
        assert text.token_ids.tolist() == talk.token_ids[: len(text)]
    for block in held:
        pool.free(block)


def test_talks_begin_with_the_prompt_and_some_go_on(target, monkeypatch):
    monkeypatch.setattr(text_module, "OWN_SHARE", 0.0)
    texts = list(TextWriter(target, seed=5).write(0).texts())
    first = 5 * 1_000_003 * len(texts)
    for index, text in enumerate(texts):
        prompt = next(iter(PromptWriter(first + index)))
        asked = target.tokenizer.encode(target.tokenizer.chat([{"role": "user", "content": prompt}]))[:256]
        assert text.token_ids[: len(asked)].tolist() == asked
        assert not text.reply[: len(asked)].any()
        assert text.reply[len(asked)]
        assert text.reply[-1]
    turns = [int((text.reply[1:] & ~text.reply[:-1]).sum()) for text in texts]
    assert 1 in turns
    assert max(turns) > 1


def test_no_text_is_longer_than_the_context_and_none_keeps_an_end(target, shard):
    for text in shard.texts():
        assert len(text) <= 512
        assert END not in text.token_ids[text.reply].tolist()


def test_the_target_asks_where_a_user_would_speak(target, monkeypatch):
    monkeypatch.setattr(text_module, "OWN_SHARE", 1.0)
    talk = Talk(target, seed=0, max_tokens=512)
    opening, params = talk.request()
    assert bytes(opening).decode() == "user: "
    assert (params.temperature, params.min_tokens, params.max_tokens) == (1.0, *text_module.OWN_TOKENS)
    talk.hear(0, torch.ones(6, 32))
    talk.take([*b" Why is snow white? ", END])
    asked = b"user: Why is snow white?\nassistant: "
    assert bytes(talk.token_ids) == asked
    assert talk.replies == [False] * len(asked)
    assert not talk.is_known.any()  # what was heard belongs to the question's own request
    answer, params = talk.request()
    assert bytes(answer) == asked
    assert params.temperature in (0.0, 0.8)


@pytest.mark.parametrize("question", [[65] * 64, [32] * 5 + [END]], ids=["without an end", "empty"])
def test_a_question_that_is_none_leaves_the_prompt(target, monkeypatch, question):
    monkeypatch.setattr(text_module, "OWN_SHARE", 1.0)
    talk = Talk(target, seed=0, max_tokens=512)
    prompt = list(talk.token_ids)
    talk.take(question)
    assert not talk.is_asking
    assert talk.token_ids == prompt


def test_most_talks_begin_with_a_question_of_the_target(target):
    asking = sum(Talk(target, seed, 512).is_asking for seed in range(400))
    assert abs(asking / 400 - text_module.OWN_SHARE) < 0.1


def test_a_follow_up_is_asked_after_an_answer(talk):
    """The byte tokenizer's own talk: the tokens so far stay as they are, whatever they decode to."""
    before = len(talk.token_ids)
    talk.take([72, 105, END])
    added = bytes(talk.token_ids[before:]).decode()
    assert added.startswith("Hi\nuser: ")
    assert added.endswith("\nassistant: ")
    assert talk.replies[before:][:3] == [True, True, False]
    assert not talk.is_over


def test_a_talk_that_would_not_fit_ends(talk):
    before = len(talk.token_ids)
    talk.take([72] * (512 - 8 - before))
    assert len(talk.token_ids) == 512 - 8
    assert talk.is_over


def test_progress_is_told_as_it_comes(target, shard):
    told = []
    TextWriter(target, seed=5).write(0, told.append)
    assert len(told) > 10
    assert 0 <= sum(told) - shard.num_reply_tokens <= 3 * 16  # the end tokens, and the last ones without a state


def test_an_interrupted_shard_leaves_the_writer_as_it_was(target, shard):
    writer = TextWriter(target, seed=5)

    def stop(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(0, stop)
    assert not writer.talks
    assert writer.write(0).token_ids.equal(shard.token_ids)
