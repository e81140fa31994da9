"""A draft may hold the end of an output: it ends there, as without speculation, and nothing behind it is told."""

import pytest

from servelab.model import ByteTokenizer
from servelab.sampling import SamplingParams
from servelab.trace import Draft

PROMPT = [10, 20, 30, 40, 50]


def until(num_tokens, **params):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **params)


@pytest.mark.parametrize("ends", [0, 1, 2, 3])
def test_a_draft_that_contains_the_end_token(make_scripted, drain, greedy, ends):
    """The output ends at it, as without speculation, and what was accepted behind it is dropped
    [transformers#47912]."""
    expected = greedy(PROMPT, 12)
    end = expected[ends]
    length = expected.index(end) + 1
    engine, _ = make_scripted()
    engine.add_request(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(end,)), "A")
    output = drain(engine)["A"]
    assert (output.token_ids, output.finish_reason) == (expected[:length], "stop")
    assert output.text == engine.model.tokenizer.decode(expected[: length - 1])
    for state in engine.trace.states("computed"):
        assert state.requests[0].num_computed_tokens <= state.requests[0].num_tokens


def test_a_draft_that_contains_the_models_own_end_token(make_scripted, drain, greedy, monkeypatch):
    """As without speculation: it ends the output, and with `ignore_eos` it is a token like others
    [transformers#47912]."""
    expected = greedy(PROMPT, 12)
    end = expected[2]
    length = expected.index(end) + 1
    monkeypatch.setattr(ByteTokenizer, "eos_token_ids", (end,))
    engine, _ = make_scripted()
    engine.add_request(PROMPT, SamplingParams(max_tokens=12), "ends")
    engine.add_request(PROMPT, until(12), "goes on")
    outputs = drain(engine)
    assert (outputs["ends"].token_ids, outputs["ends"].finish_reason) == (expected[:length], "stop")
    assert outputs["ends"].text == engine.model.tokenizer.decode(expected[: length - 1])
    assert (outputs["goes on"].token_ids, outputs["goes on"].finish_reason) == (expected, "length")
    drafts = [event for step in engine.trace.steps for event in step.events if isinstance(event, Draft)]
    assert {draft.request for draft in drafts if end in draft.token_ids} == {0, 1}


def test_a_stop_string_within_an_accepted_draft(make_scripted, drain, greedy):
    engine, _ = make_scripted()
    text = engine.model.tokenizer.decode(greedy(PROMPT, 12))
    place = next(i for i in range(3, len(text)) if text[i].isascii() and text[i] not in text[:i])
    engine.add_request(PROMPT, until(12, stop=text[place]), "A")
    output = drain(engine)["A"]
    assert (output.text, output.finish_reason) == (text[:place], "stop")
    assert output.token_ids == greedy(PROMPT, len(output.token_ids))


@pytest.mark.parametrize("start", range(4))
def test_no_part_of_a_stop_string_within_a_draft_is_sent(make_scripted, greedy, start):
    """Three characters over three tokens of one draft of eight, all of them right [vllm#3574]."""
    prompt, text, place = readable(greedy, start)
    engine, _ = make_scripted()
    engine.add_request(prompt, until(20, stop=text[place : place + 3]), "A")
    pieces, outputs = [], []
    while engine.has_unfinished():
        outputs += engine.step()
        pieces.append(outputs[-1].delta_text)
    assert "".join(pieces) == outputs[-1].text == text[:place]
    assert outputs[-1].finish_reason == "stop"
    assert any(len(output.delta_token_ids) >= 3 for output in outputs)


def readable(greedy, start):
    """A prompt, its greedy text, and where three ASCII characters stand in it for the first time, from `start` on."""
    for token in range(250):
        prompt = [token] * 4
        text = ByteTokenizer().decode(greedy(prompt, 12))
        for place in range(start + 1, len(text) - 2):
            stop = text[place : place + 3]
            if stop.isascii() and text.isprintable() and text.find(stop) == place:
                return prompt, text, place
    raise AssertionError("no greedy output is readable")
