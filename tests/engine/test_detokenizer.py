"""`Detokenizer`: no half character is shown, and the pieces join to the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.engine.detokenizer import Detokenizer
from servelab.model import ByteTokenizer


def pieces(token_ids):
    detokenizer = Detokenizer(ByteTokenizer().decode)
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


@given(st.lists(st.integers(0, 256)))
def test_pieces_of_any_bytes_join_to_the_decoding_of_all(token_ids):
    assert "".join(pieces(token_ids)) == ByteTokenizer().decode(token_ids)


def test_a_tokenizer_that_treats_the_first_token_specially():
    """SentencePiece drops the space before the first word of what it decodes, wherever that is."""
    words = [" The", " llama", " is", " 🦙"]

    def decode(token_ids):
        return "".join(words[token_id] for token_id in token_ids).removeprefix(" ")

    detokenizer = Detokenizer(decode)
    assert [detokenizer.add(token_id) for token_id in range(4)] == ["The", " llama", " is", " 🦙"]
