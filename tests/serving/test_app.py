"""OpenAI's routes: what is answered, whole and in chunks, and what is refused."""

import json
import math

import httpx
import pytest

from servelab.engine import Engine, EngineConfig, RequestOutput
from servelab.engine.output import RequestMetrics
from servelab.sampling import Logprobs, SamplingParams
from servelab.serving.answer import ChatWriter, CompletionWriter
from servelab.speculative import NGram

CHAT = "/v1/chat/completions"


@pytest.fixture
def expected(toy_model):
    """What the engine itself answers."""

    def generate(prompt, **params):
        engine = Engine(toy_model, EngineConfig(block_size=4, num_blocks=128))
        return engine.generate([prompt], SamplingParams(**{"max_tokens": 8, **params}))

    return generate


def events(response: httpx.Response) -> list[dict]:
    """The chunks of a stream; exactly one [DONE], at the end (sglang#3912)."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines), lines
    assert [line for line in lines if line == "data: [DONE]"] == lines[-1:]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.json()["error"]


def test_a_completion_is_what_the_engine_answers(server, expected):
    [want] = expected("Hello")
    answer = server.post(prompt="Hello").json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "toy"
    assert answer["choices"] == [{"index": 0, "text": want.text, "logprobs": None, "finish_reason": want.finish_reason}]
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    server.wait_until_idle()


def test_prompts_as_text_ids_and_lists_of_either(server, expected):
    [want] = expected("Hello")
    ids = list(b"Hello")
    for prompt, count in (("Hello", 1), (ids, 1), (["Hello"], 1), (["Hello", "Hello"], 2), ([ids, ids, ids], 3)):
        answer = server.post(prompt=prompt).json()
        assert [choice["text"] for choice in answer["choices"]] == [want.text] * count
        assert [choice["index"] for choice in answer["choices"]] == list(range(count))
        assert answer["usage"]["prompt_tokens"] == 5 * count


def test_n_answers_to_each_of_two_prompts(server):
    answer = server.post(prompt=["Hello", "Bye"], n=3, temperature=1, seed=7).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert len({choice["text"] for choice in answer["choices"]}) > 2
    assert answer["usage"]["prompt_tokens"] == 8
    assert answer["usage"]["completion_tokens"] <= 48


def test_choices_stand_in_the_order_of_prompts(server):
    alone = [server.post(prompt=prompt).json()["choices"][0]["text"] for prompt in ("Hello", "Bye")]
    together = server.post(prompt=["Hello", "Bye"], n=2).json()["choices"]
    assert alone[0] != alone[1]
    assert [choice["text"] for choice in together] == [alone[0], alone[0], alone[1], alone[1]]
    chunks = events(server.post(prompt=["Hello", "Bye"], n=2, stream=True))
    texts = ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == i) for i in range(4)]
    assert texts == [alone[0], alone[0], alone[1], alone[1]]


def test_null_is_a_default(server):
    """As OpenAI's reference has it for these."""
    plain = server.post(prompt="Hello").json()["choices"]
    assert server.post(prompt="Hello", n=None, stream=None, stop=None, logit_bias=None).json()["choices"] == plain


def test_a_chat_fills_no_more_than_the_pool_holds(serve):
    server = serve({"max_model_len": 512, "num_blocks": 20})
    body = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    assert server.client.post(CHAT, json=body).json()["usage"]["total_tokens"] == 80
    assert server.client.get("/v1/models/toy").json()["max_model_len"] == 80


def test_bytes_of_a_part_of_a_character(server):
    """Clients join them to whole characters."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 1, "max_tokens": 1}
    [entry] = server.post(CHAT, **body, logit_bias={"226": 100}).json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("\ufffd", [0xE2])


def test_streamed_logprobs_of_several_tokens_a_step(serve):
    """Drafts that are accepted come together."""
    server = serve({"speculative": NGram(k=3)})
    body = {"prompt": "abcabcabcabc", "max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    whole = server.post(**body).json()["choices"][0]["logprobs"]
    assert server.engine.speculation.accepted > 0
    pieces = [c["logprobs"] for chunk in events(server.post(**body, stream=True)) for c in chunk["choices"]]
    assert max(len(piece["tokens"]) for piece in pieces) > 1
    for name in ("tokens", "text_offset"):
        assert [value for piece in pieces for value in piece[name]] == whole[name]


def test_a_row_beyond_the_tokenizers_last_id_has_no_text(server, monkeypatch, toy_model):
    """Many models have such rows."""

    def token_text(token_id):
        raise ValueError("expected a token id")

    monkeypatch.setattr(toy_model.tokenizer, "token_text", token_text, raising=False)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
    content = server.post(CHAT, **chat).json()["choices"][0]["logprobs"]["content"]
    assert {(entry["token"], *entry["bytes"]) for entry in content} == {("",)}


def test_a_fault_of_ours_is_told_in_openais_form(server, monkeypatch):
    def fail(self, *arguments):
        raise RuntimeError("planted")

    monkeypatch.setattr(CompletionWriter, "choice", fail)
    monkeypatch.setattr(CompletionWriter, "delta", fail)
    assert error(server.post(prompt="Hello"), 500)["type"] == "internal_server_error"
    [told] = events(server.post(prompt="Hello", stream=True))
    assert told["error"]["type"] == "internal_server_error"
    server.wait_until_idle()


def test_the_same_seed_answers_the_same(server):
    texts = [server.post(prompt="Hello", temperature=1, seed=seed).json()["choices"][0]["text"] for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    assert server.post(prompt="Hello", seed=-3).status_code == 200  # OpenAI's seeds may be negative


def test_a_stream_joins_to_the_whole_and_ends_with_a_reason(server):
    whole = server.post(prompt="Hello", max_tokens=20).json()["choices"][0]
    chunks = events(server.post(prompt="Hello", max_tokens=20, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [whole["finish_reason"]]
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_in_a_last_chunk_when_asked_for(server):
    chunks = events(server.post(prompt="Hello", stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 13


def test_a_chat_uses_the_models_template_and_fills_the_context(server, expected, toy_model):
    messages = [{"role": "user", "content": "Hi"}]
    prompt = toy_model.tokenizer.chat(messages)
    [want] = expected(prompt, max_tokens=12)
    body = {"model": "toy", "messages": messages, "temperature": 0}
    answer = server.client.post(CHAT, json={**body, "max_completion_tokens": 12}).json()
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": want.text, "refusal": None}
    assert answer["object"] == "chat.completion"
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    split = {**body, "messages": [{"role": "user", "content": parts}], "max_tokens": 12}
    assert server.client.post(CHAT, json=split).json()["choices"] == answer["choices"]
    full = server.client.post(CHAT, json={**body, "ignore_eos": True}).json()
    assert full["usage"]["total_tokens"] == server.engine.max_model_len
    assert full["choices"][0]["finish_reason"] == "length"


def test_a_chat_streams_its_role_first(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "n": 2, "temperature": 1, "seed": 1}
    chunks = events(server.post(CHAT, **body))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
        assert [choice["finish_reason"] is None for choice in choices] == [True] * (len(choices) - 1) + [False]


def test_a_stop_string_is_never_sent(server, expected):
    """No part of it, streaming and not (vllm#3574)."""
    text = expected("Hello", max_tokens=30)[0].text
    stop = text[4:7]
    want = text[: text.index(stop)]
    assert server.post(prompt="Hello", max_tokens=30, stop=stop).json()["choices"][0]["text"] == want
    chunks = events(server.post(prompt="Hello", max_tokens=30, stop=[stop, "\0\0"], stream=True))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == want
    assert choices[-1]["finish_reason"] == "stop"


def test_logprobs_of_a_completion(server, expected):
    [want] = expected("Hello", logprobs=2)
    logprobs = server.post(prompt="Hello", logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [entry.logprob for entry in want.logprobs]
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"]) == 8
    chunks = events(server.post(prompt="Hello", logprobs=2, stream=True))
    pieces = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    for name, values in logprobs.items():
        assert [value for piece in pieces for value in piece[name]] == values


def test_logprobs_of_a_chat(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 3}
    content = server.post(CHAT, **body).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 8
    for entry in content:
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]  # greedy
    chunks = events(server.post(CHAT, **body, stream=True))
    pieces = [choice["logprobs"]["content"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [entry for piece in pieces for entry in piece] == content


def test_models_health_and_unknown_routes(server):
    assert server.client.get("/health").status_code == 200
    [card] = server.client.get("/v1/models").json()["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("toy", "toy", server.engine.max_model_len)
    assert server.client.get("/v1/models/toy").json() == card
    error(server.client.get("/v1/models/other"), 404)
    error(server.client.get("/v1/embeddings"), 404)
    error(server.client.get("/v1/completions"), 405)


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({"prompt": ""}, "prompt", None),
        ({"prompt": []}, "at least one", "prompt"),
        ({"prompt": [[]]}, "prompt", None),
        ({"prompt": [1.5]}, "expected a string, token ids", "prompt"),
        ({"prompt": None}, "expected a string, token ids", "prompt"),
        ({"prompt": [300]}, "300", None),
        ({"prompt": "x" * 600}, "512", None),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "max_tokens"),
        ({"prompt": "x", "max_tokens": 10**30}, "max_tokens", "max_tokens"),
        ({"prompt": "x", "max_tokens": 600}, "512", None),
        ({"prompt": "x", "temperature": -1}, "temperature", "temperature"),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p", "top_p"),
        ({"prompt": "x", "n": 0}, "n", "n"),
        ({"prompt": ["x"] * 40, "n": 2}, "64", None),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "token ids as keys", "logit_bias"),
        ({"prompt": "x", "logit_bias": {"5": 1000}}, "logit_bias", None),
        ({"prompt": "x", "logit_bias": {"5000": 1}}, "5000", None),
        ({"prompt": "x", "echo": True}, "echo is not supported", "echo"),
        ({"prompt": "x", "suffix": "auto"}, "suffix is not supported", "suffix"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream", "stream_options"),
        ({"prompt": "x", "stop": ["a"] * 17}, "at most 16 strings", "stop"),
        ({"prompt": "x", "logit_bias": {str(i): 1 for i in range(2000)}}, "at most 1024 biases", "logit_bias"),
        ({"prompt": "x", "stop_token_ids": [1] * 2000}, "1024", "stop_token_ids"),
        ({"prompt": "x", "stop": ""}, "stop", None),
        ({"prompt": "x", "min_tokens": 9}, "min_tokens", None),
        ({"prompt": "x", "stop_token_ids": [999]}, "999", None),
    ],
)
def test_what_cannot_be_is_refused_and_the_server_goes_on(server, body, words, param):
    """Neighbours of llama.cpp#3969, vllm#7283 and vllm#6521: a 400 that says what was expected."""
    said = error(server.post(**body), 400)
    assert words in said["message"]
    assert said["type"] == "invalid_request_error"
    assert said["param"] == param
    assert server.post(prompt="Hello").status_code == 200
    server.wait_until_idle()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "toy", "prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"model": "toy", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "toy", "prompt": "x", "n": NaN}',
    ],
)
def test_no_json_is_a_400(server, content):
    said = error(server.client.post("/v1/completions", content=content), 400)
    assert said["type"] == "invalid_request_error"


@pytest.mark.parametrize("field", ["tools", "functions", "response_format", "audio", "tool_choice", "function_call"])
def test_what_is_not_built_in_chats_is_refused(server, field):
    messages = [{"role": "user", "content": "Hi"}]
    value = [{"type": "function"}] if field in ("tools", "functions") else {"type": "json_object"}
    assert error(server.post(CHAT, messages=messages, **{field: value}), 400)["param"] == field
    harmless = {"tools": [], "functions": [], "response_format": {"type": "text"}, "tool_choice": "auto"}
    assert server.post(CHAT, messages=messages, **{field: harmless.get(field)}).status_code == 200


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user"}], [{"role": "user", "content": [{"type": "image_url"}]}], "Hi", [[]]]
)
def test_messages_that_are_none(server, messages):
    assert error(server.post(CHAT, messages=messages), 400)["param"] == "messages"


def test_another_model_is_unknown(server):
    assert error(server.post(prompt="x", model="gpt-4"), 404)["code"] == "model_not_found"


def test_a_key_is_asked_for(serve):
    server = serve(api_key="secret")
    assert error(server.post(prompt="x"), 401)["code"] == "invalid_api_key"
    for value in ("Bearer wrong", "Bearer", "secret", "Bearer sécret"):
        headers = {"Authorization": value.encode("latin-1")}
        assert server.client.get("/v1/models", headers=headers).status_code == 401
    assert server.client.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert server.client.get("/health").status_code == 200


def test_a_key_of_any_letters(serve):
    server = serve(api_key="clé")
    headers = {"Authorization": "Bearer  clé".encode()}
    assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_long_texts_are_tokenized_beside_the_event_loop(server, expected):
    """Others are answered meanwhile; and what is too much is refused before it is tokenized."""
    ids = list(b"Hello " * 60)
    [want] = expected(ids)
    answer = server.post(prompt=["Hello " * 60] * 60)
    assert [choice["text"] for choice in answer.json()["choices"]] == [want.text] * 60
    assert "64" in error(server.post(prompt=["x" * 3000] * 1000), 400)["message"]
    server.wait_until_idle()


def test_a_body_that_is_too_large(serve):
    server = serve(max_body_bytes=1000)
    error(server.post(prompt="x" * 1000), 413)
    assert server.post(prompt="x").status_code == 200


def test_openapi_is_whole(server):
    schema = server.client.get("/openapi.json").json()
    text = json.dumps(schema)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#')[1:]}:
        node = schema
        for step in reference.strip("/").split("/"):
            node = node[step]
    body = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "prompt" in body["properties"]


def test_a_token_that_cannot_be_has_a_logprob_that_json_can_hold(toy_model):
    entry = Logprobs(72, -math.inf, (72,), (-math.inf,))
    output = RequestOutput("a", 0, [72], "H", [72], "H", "length", [entry], RequestMetrics(0.0, 1))
    for writer in (CompletionWriter("toy", toy_model.tokenizer), ChatWriter("toy", toy_model.tokenizer)):
        text = json.dumps(writer.whole([output], {}), allow_nan=False)
        assert text.count("-9999.0") >= 2
