"""`Detokenizer`: no half character is shown, and the pieces join to the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.engine.detokenizer import WINDOW, Detokenizer, TokenTexts
from servelab.model import ByteTokenizer


def pieces(token_ids, stop=()):
    detokenizer = Detokenizer(ByteTokenizer().decode, stop)
    found = [detokenizer.add(token_id) for token_id in token_ids]
    found.append(detokenizer.flush())
    assert detokenizer.text == "".join(found)
    return found


@pytest.mark.parametrize("text", ["🦙é", "a🦙b", "日本語", "plain", "é"])
def test_a_character_over_several_tokens_is_shown_whole(text):
    """One token a byte: no U+FFFD is ever shown, and the pieces join to the text [vllm-mlx#109]."""
    found = pieces(text.encode())
    assert all("\ufffd" not in piece for piece in found)
    assert "".join(found) == text
    assert [piece for piece in found if piece] == list(text)


def test_an_incomplete_character_at_the_end_is_shown_at_the_end():
    assert pieces("a🦙".encode()[:-1]) == ["a", "", "", "", "\ufffd"]


def test_what_comes_before_an_incomplete_character_is_shown():
    detokenizer = Detokenizer(
        lambda token_ids: b"".join([b"ab\xf0\x9f", b"\xa6\x99c"][: len(token_ids)]).decode("utf-8", "replace")
    )
    assert [detokenizer.add(0), detokenizer.add(1)] == ["ab", "🦙c"]


@pytest.mark.parametrize("text", ["a" * 40, "é" * 20, "日本語" * 9, "🦙é a" * 9])
def test_a_long_text_is_decoded_in_short_pieces(text):
    """A new token costs the decoding of a few, not of all before it."""
    lengths = []

    def decode(token_ids):
        lengths.append(len(token_ids))
        return ByteTokenizer().decode(token_ids)

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.add(token_id) for token_id in text.encode()) == text
    assert max(lengths) <= WINDOW + 4
    assert len(lengths) < 1.4 * len(text.encode())


@given(st.lists(st.integers(0, 256), max_size=40))
def test_pieces_of_any_bytes_join_to_the_decoding_of_all(token_ids):
    assert "".join(pieces(token_ids)) == ByteTokenizer().decode(token_ids)


@pytest.mark.parametrize("first", [b"", b"a", "日".encode()])
@pytest.mark.parametrize("pieces", ["ff", "f0 9f", "20e6", "e6 97 a5 e6", "6162f0", "f09f a6", "99f0 9fa6 99ff"])
def test_bytes_that_are_no_characters_are_decoded_in_short_pieces_too(first, pieces):
    """A model may write nothing else: what is shown comes late by a few bytes, and no window grows with the text."""
    tokens = [first, *[bytes.fromhex(piece) for piece in pieces.split()] * 120]
    lengths, shown = [], ""

    def decode(token_ids):
        lengths.append(len(token_ids))
        return b"".join(tokens[token_id] for token_id in token_ids).decode("utf-8", "replace")

    detokenizer = Detokenizer(decode)
    for token_id in range(len(tokens)):
        shown += detokenizer.add(token_id)
        known = b"".join(tokens[: token_id + 1]).decode("utf-8", "replace")
        assert known.startswith(shown)
        assert len(shown) >= len(known) - 3
    assert shown + detokenizer.flush() == known
    assert max(lengths) <= 2 * WINDOW
    assert len(lengths) < 3 * len(tokens)


def test_characters_of_several_tokens_of_a_real_tokenizer_are_shown_whole(smollm2):
    """No U+FFFD on the way, for a family of three joined by invisible characters too [vllm-mlx#109]."""
    text = "🦙é日本語 👩‍👩‍👧 a"
    token_ids = smollm2.tokenizer.encode(text)
    detokenizer = Detokenizer(smollm2.tokenizer.decode)
    found = [detokenizer.add(token_id) for token_id in token_ids]
    assert not any("\ufffd" in piece for piece in found)
    assert "" in found, "no character took several tokens"
    assert "".join(found) == smollm2.tokenizer.decode(token_ids) == text


def test_a_tokenizer_that_treats_the_first_token_specially():
    """SentencePiece drops the space before the first word of what it decodes, wherever that is."""
    words = [" The", " llama", " is", " 🦙"]

    def decode(token_ids):
        return "".join(words[token_id % 4] for token_id in token_ids).removeprefix(" ")

    detokenizer = Detokenizer(decode)
    assert [detokenizer.add(token_id) for token_id in range(4)] == ["The", " llama", " is", " 🦙"]
    assert [detokenizer.add(token_id) for token_id in range(40)] == words * 10


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("a🦙b", ["🦙"], "a"),
        ("aé", ["é!"], "aé"),
        ("x##", ["###", "##"], "x"),
        ("no stop at all", ["###"], "no stop at all"),
    ],
)
def test_a_stop_string_over_several_tokens_is_never_shown(text, stop, expected):
    """One token a byte: no part of a stop string is shown; what only began like one is shown later [vllm#3574]."""
    found = pieces(text.encode(), stop)
    assert "".join(found) == expected
    held = [expected[: len("".join(found[: end + 1]))] for end in range(len(found))]
    assert held == ["".join(found[: end + 1]) for end in range(len(found))]


def test_a_stop_string_counts_only_where_it_begins_after_it_may():
    detokenizer = Detokenizer(ByteTokenizer().decode, ["b", "cd"])
    assert [detokenizer.add(token, may_stop=False) for token in b"abc"] == ["a", "b", "c"]
    assert (detokenizer.add(ord("d")), detokenizer.stopped) == ("d", False), "it began before"
    assert (detokenizer.add(ord("b")), detokenizer.stopped, detokenizer.flush()) == ("", True, "")


def test_each_token_is_looked_up_once():
    class Counting(ByteTokenizer):
        calls = 0

        def token_text(self, token_id):
            self.calls += 1
            if token_id > 256:
                raise ValueError("no such token")
            return super().token_text(token_id)

    tokenizer = Counting()
    texts = TokenTexts(tokenizer)
    assert texts([65, 240, 65, 999, 256]) == texts([65, 240, 65, 999, 256]) == ["A", "", "A", "", "<end>"]
    assert tokenizer.calls == 4
