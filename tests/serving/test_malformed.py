"""2,000 bodies that nobody would send on purpose: each gets an answer below 500, and no block is lost."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from servelab.serving import app
from servelab.serving.protocol import ChatCompletionRequest, CompletionRequest

ROUTES = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatCompletionRequest}
WHOLE = {
    "/v1/completions": {"model": "toy", "prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(max_size=8), one, max_size=4)
)
OFTEN = [0, 1, -1, 2**31, 2**63, 10**40, 1e308, "", "\0", [], {}, [[]], [0], [0.5], True, None, "NaN", "😀", [None]]


def check(answer) -> None:
    """Below 500, and a refusal is in OpenAI's form."""
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def many(count):
    """Derandomized: the same bodies each time, so that a failure can be seen again."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("route", ROUTES)
def test_bodies_with_a_field_replaced(server, route):
    """A body that is right but for one or two fields goes deeper than one that is wrong throughout."""
    names, seen = sorted(ROUTES[route].model_fields), set()

    @many(600)
    @given(st.dictionaries(st.sampled_from(names), st.sampled_from(OFTEN) | VALUES, min_size=1, max_size=2))
    def send(fields):
        answer = server.client.post(route, content=json.dumps({**WHOLE[route], **fields}))
        check(answer)
        seen.add(answer.status_code)

    send()
    assert seen == {200, 400, 404}  # of which 404 is for another model's name
    server.wait_until_idle()
    assert server.client.post(route, json=WHOLE[route]).status_code == 200


@pytest.mark.parametrize("route", ROUTES)
def test_bytes_that_are_no_body(server, route):
    @many(200)
    @given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
    def send(content):
        answer = server.client.post(route, content=content)
        assert answer.status_code == 400, answer.text
        check(answer)

    send()
    server.wait_until_idle()


@pytest.mark.parametrize("route", ROUTES)
def test_bodies_drawn_from_our_own_openapi(server, route):
    """What the schema allows is answered or refused with a reason; what it does not allow is refused."""
    operation = schemathesis.openapi.from_url(f"{server.url}/openapi.json")[route]["POST"]
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @many(100)
        @given(operation.as_strategy(generation_mode=mode))
        def send(case):
            check(case.call())

        send()
    server.wait_until_idle()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": [{}] * 300_000}),
        ("/v1/completions", {"prompt": "x", "stop": [1] * 300_000}),
        ("/v1/completions", {"prompt": "x", "logit_bias": dict.fromkeys(map(str, range(200_000)), "x")}),
        ("/v1/chat/completions", {"messages": [1] * 300_000}),
    ],
)
def test_of_many_faults_the_first_is_told(monkeypatch, server, route, body):
    """All of them would be gigabytes, and seconds in which nobody else is answered."""
    counts, told = [], app.from_validation
    monkeypatch.setattr(app, "from_validation", lambda errors: counts.append(len(errors)) or told(errors))
    answer = server.client.post(route, json={"model": "toy", **body})
    assert answer.status_code == 400
    assert counts[0] <= 8  # one for each kind that a field may be of
