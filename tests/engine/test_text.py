"""Text as it is streamed: whole characters, no part of a stop string, and the tail at the end."""

import pytest

from servelab.sampling import SamplingParams
from servelab.speculative import NGram

PROMPT = [10, 20, 30, 40, 50]


def spelled(engine, text):
    """Let the engine's requests output `text`, one byte a token, whatever the model says."""

    def choose(rows, drafts, logits, original=engine.sampler.choose):
        for row in rows:
            for request in (row.request, *row.request.unborn):
                request.params = request.params.__class__(
                    max_tokens=request.params.max_tokens,
                    min_tokens=request.params.min_tokens,
                    ignore_eos=True,
                    logit_bias={text.encode()[request.num_output_tokens % len(text.encode())]: 100.0},
                )
        return original(rows, drafts, logits)

    engine.sampler.choose = choose
    return engine


def stream(engine, **params):
    """The pieces of text as they come, and the final output."""
    engine.add_request(PROMPT, SamplingParams(ignore_eos=True, **params), "A")
    pieces = []
    while engine.has_unfinished():
        outputs = engine.step()
        pieces += [output.delta_text for output in outputs]
    return pieces, outputs[-1]


@pytest.mark.parametrize("text", ["🦙é", "日本語", "aé🦙z"])
def test_a_character_over_several_tokens_is_streamed_whole(make_engine, text):
    """No U+FFFD on the way, and the pieces joined are the full decoding [vllm-mlx#109]."""
    pieces, output = stream(spelled(make_engine(), text), max_tokens=len(text.encode()))
    assert [piece for piece in pieces if piece] == list(text)
    assert (output.text, output.finish_reason) == (text, "length")


def test_half_a_character_at_the_end_is_delivered_as_what_it_is(make_engine):
    pieces, output = stream(spelled(make_engine(), "a🦙"), max_tokens=3)
    assert (pieces, output.text) == (["a", "", "\ufffd"], "a\ufffd")


@pytest.mark.parametrize(
    ("text", "stop", "pieces", "tokens"),
    [
        ("one END", "END", [*list("one "), "", "", ""], 7),
        ("abXYabXZ", ["XZ"], ["a", "b", "", "XY", "a", "b", "", ""], 8),
        ("say ###", ["##", "###"], [*list("say "), "", ""], 6),
        ("aé!", "é", ["a", "", ""], 3),
        ("🦙", "🦙", ["", "", "", ""], 4),
    ],
)
def test_a_stop_string_over_several_tokens_is_never_sent(make_engine, text, stop, pieces, tokens):
    """Streaming and not: no part of it, and what only began like one comes later [vllm#3574]."""
    got, output = stream(spelled(make_engine(), text), max_tokens=20, stop=stop)
    assert got == pieces
    assert (output.text, output.finish_reason) == ("".join(pieces), "stop")
    assert output.token_ids == list(text.encode())[:tokens]


@pytest.mark.parametrize(("max_tokens", "expected"), [(6, "one EN"), (5, "one E"), (7, "one ")])
def test_what_was_held_back_is_delivered_at_the_end(make_engine, max_tokens, expected):
    pieces, output = stream(spelled(make_engine(), "one END"), max_tokens=max_tokens, stop="END")
    assert "".join(pieces) == output.text == expected


@pytest.mark.parametrize(("text", "end", "expected"), [("one EN!", ord("!"), "one EN"), ("a🦙", 0x9F, "a\ufffd")])
def test_what_was_held_back_is_delivered_when_an_end_token_comes(make_engine, text, end, expected):
    """The beginning of a stop string, and half a character; not the end token's own text."""
    pieces, output = stream(spelled(make_engine(), text), max_tokens=20, stop="END", stop_token_ids=(end,))
    assert (output.text, output.finish_reason) == (expected, "stop")
    assert "".join(pieces) == expected
    assert output.token_ids[-1] == end


def test_what_was_held_back_is_delivered_on_abort(make_engine):
    engine = spelled(make_engine(), "one END")
    engine.add_request(PROMPT, SamplingParams(max_tokens=9, stop="END", ignore_eos=True), "A")
    for _ in range(6):
        engine.step()
    engine.abort("A")
    (output,) = engine.step()
    assert (output.delta_text, output.text, output.finish_reason) == ("EN", "one EN", "abort")


def test_a_stop_string_before_the_minimum_does_not_count(make_engine):
    pieces, output = stream(spelled(make_engine(), "a.b.c."), max_tokens=9, min_tokens=3, stop=".")
    assert ("".join(pieces), output.finish_reason) == ("a.b", "stop")


def test_a_stop_string_ends_each_answer_by_itself(make_engine):
    outputs = make_engine(speculative=NGram()).generate(
        [PROMPT], SamplingParams(max_tokens=30, n=3, temperature=3.0, seed=5, stop=["e", "A", "~"], ignore_eos=True)
    )
    for output in outputs:
        assert not any(stop in output.text for stop in "eA~")
    assert "stop" in {output.finish_reason for output in outputs}
