"""Any server seen from outside: what it lists, refuses and tells, and one plain sentence for whatever is wrong."""

import socket
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand_in_server import TEXT, answering, listing

from servelab.serving.target import KV_USAGE, RUNNING, WAITING, Card, Target, TargetFailed, families, sums


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_is_told_with_or_without_v1(given):
    assert Target(given).url == "http://h:1"


@pytest.mark.parametrize("given", ["127.0.0.1:8000", "ftp://h", "http://", ""])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(ValueError, match=r"expected an address such as http://127\.0\.0\.1:8000, got"):
        Target(given)


def test_the_only_model_is_chosen_and_a_name_must_be_there():
    with answering({"/v1/models": listing("toy")}) as (url, _):
        assert Target(url).model(None) == Card("toy", "/models/toy")
        with pytest.raises(TargetFailed, match=r"Expected a model of http://.* \(toy\), got 'tony'"):
            Target(url).model("tony")
    with answering({"/v1/models": listing("a", "b")}) as (url, _):
        assert Target(url).model("b").name == "b"
        with pytest.raises(TargetFailed, match="--model with one of these: a, b"):
            Target(url).model(None)


def test_the_key_goes_with_every_question():
    with answering({"/v1/models": listing("toy"), "/metrics": (200, TEXT)}) as (url, heard):
        target = Target(url, "secret")
        target.models()
        target.metrics()
    assert [headers["Authorization"] for _, _, headers, _ in heard] == ["Bearer secret"] * 2


def test_one_token_is_asked_for_before_a_load():
    pages = {"/v1/completions": (200, {}), "/v1/chat/completions": (200, {})}
    with answering(pages) as (url, heard):
        Target(url).try_model("toy", chat=False)
        Target(url).try_model("toy", chat=True)
    prompt, chat = (body for *_, body in heard)
    assert (prompt["model"], prompt["max_tokens"], "prompt" in prompt) == ("toy", 1, True)
    assert chat["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ((401, {"error": {"message": "who are you?"}}), "answers 401: who are you?"),
        ((422, {"detail": "no such field"}), "answers 422: no such field"),
        ((500, "<html>"), "answers 500: Internal Server Error"),
        ((200, "<html>"), "Expected JSON from .*: is it an OpenAI-compatible server?"),
        ((200, {"models": []}), "Expected a list of models from"),
        ((200, ["toy"]), "Expected a list of models from"),
    ],
)
def test_an_answer_that_was_not_expected_is_one_sentence(page, said):
    with answering({"/v1/models": page}) as (url, _), pytest.raises(TargetFailed, match=said) as failed:
        Target(url).models()
    assert "\n" not in str(failed.value)


def test_nobody_at_the_address_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TargetFailed, match=rf"No answer from http://127.0.0.1:{port} \(.*\): is the server running\?"):
        Target(f"http://127.0.0.1:{port}").models()


def test_something_that_speaks_no_http_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak():
            connection = listener.accept()[0]
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(TargetFailed, match="No answer from"):
            Target(f"http://127.0.0.1:{listener.getsockname()[1]}").models()
        thread.join()


def test_metrics_are_counters_and_gauges_over_all_labels():
    assert families(TEXT)[RUNNING] == [3, 4]
    assert sums(TEXT) == {KV_USAGE: 0.375, RUNNING: 7, WAITING: 0, "vllm:generation_tokens_total": 70}
    with pytest.raises(ValueError, match=r".+"):
        sums('vllm:broken{engine="0" 1')
