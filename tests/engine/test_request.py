"""`Request`: its two counters, and where an output ends when several tokens come at once."""

import pytest

from servelab.engine.detokenizer import Detokenizer
from servelab.engine.output import RequestMetrics
from servelab.engine.request import Request, sample_id
from servelab.model import ByteTokenizer
from servelab.sampling import SamplingParams, make_generator

PROMPT = [1, 2, 3]


def make_request(end_token_ids=(), index=0, **params):
    params = SamplingParams(**{"max_tokens": 8} | params)
    return Request(
        request_id="A",
        index=index,
        token_ids=list(PROMPT),
        params=params,
        end_token_ids=frozenset(end_token_ids),
        generator=make_generator(0, "cpu"),
        detokenizer=Detokenizer(ByteTokenizer().decode, params.stop),
        metrics=RequestMetrics(arrival_s=0.0, num_prompt_tokens=3),
    )


def test_prompt_and_output_are_one_list_of_tokens():
    request = make_request()
    request.extend(b"ab")
    assert (request.prompt_token_ids, request.output_token_ids) == (PROMPT, list(b"ab"))
    assert (request.num_tokens, request.num_output_tokens, request.max_num_tokens) == (5, 2, 11)
    request.num_computed_tokens = 3
    assert request.num_uncomputed_tokens == 2


@pytest.mark.parametrize(
    ("params", "ends", "tokens", "expected"),
    [
        ({}, (), b"abc", (3, "abc", None)),
        ({}, b"b", b"abc", (2, "a", "stop")),
        ({"max_tokens": 2}, (), b"abc", (2, "ab", "length")),
        ({"max_tokens": 2}, b"b", b"abc", (2, "a", "stop")),
        ({"max_tokens": 3}, b"c", b"ab", (2, "ab", None)),
        ({"stop": "bc"}, (), b"abcd", (3, "a", "stop")),
        ({"stop": "bc", "max_tokens": 3}, (), b"abc", (3, "a", "stop")),
        ({"stop": "bc"}, (), b"ab", (2, "a", None)),
        ({"stop": "b", "min_tokens": 3}, (), b"abcb", (4, "abc", "stop")),
        ({"stop": "b", "min_tokens": 2}, (), b"abcb", (2, "a", "stop")),
        ({}, (), b"", (0, "", None)),
    ],
)
def test_an_output_ends_at_the_first_token_that_ends_it(params, ends, tokens, expected):
    """Tokens that a draft brought behind the end are dropped [transformers#47912]."""
    request = make_request(ends, **params)
    assert request.extend(tokens) == expected
    assert request.output_token_ids == list(tokens[: expected[0]])


def test_an_output_tells_what_is_new():
    request = make_request(logprobs=2)
    request.extend(b"abc")
    output = request.output(2, "bc", None)
    assert (output.token_ids, output.delta_token_ids) == (list(b"abc"), list(b"bc"))
    assert (output.text, output.delta_text, output.index, output.logprobs) == ("abc", "bc", 0, [])
    assert request.output(0, "", "abort").delta_token_ids == []
    assert make_request().output(0, "", None).logprobs is None
    request.token_ids.append(9)
    request.logprobs.append(None)
    assert (output.token_ids, output.logprobs) == (list(b"abc"), []), "an output does not change afterwards"


def test_the_first_answer_has_the_requests_own_name():
    assert [make_request(index=index).sample_id for index in range(3)] == ["A", "A#1", "A#2"]
    assert sample_id("A#1", 0) == sample_id("A", 1)
