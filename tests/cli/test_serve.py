"""`servelab serve`: options that cannot be, and a process that is told to stop while it answers."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="the server's packages: pip install 'servelab[serving]'")

import servelab.model
import servelab.serving
from servelab.cli import app
from servelab.model import toy_model
from servelab.serving import ServerFailed
from servelab.speculative import DraftHead, NGram

COMMAND = [sys.executable, "-c", "from servelab.cli import main; main()", "serve"]
BODY = {"model": "smollm2-135m", "prompt": "Once upon a time", "ignore_eos": True, "temperature": 0, "stream": True}


@pytest.fixture
def passed(monkeypatch) -> dict:
    """What `serve` is called with; it serves nothing."""
    found: dict = {}

    def serve(model, engine_config, config, *, host, port, started):
        started("http://here:1")
        found.update(engine=engine_config, config=config, host=host, port=port)

    monkeypatch.setattr(servelab.model, "load_model", lambda name: toy_model())
    monkeypatch.setattr(servelab.serving, "serve", serve)
    return found


def test_options_become_a_configuration(passed):
    options = "--port 0 --max-num-seqs 3 --kv-cache-dtype int8 --no-prefix-caching --max-waiting 7 --num-blocks 9"
    answer = CliRunner().invoke(app, ["serve", "org/name", *options.split()], env={"SERVELAB_API_KEY": "secret"})
    assert answer.exit_code == 0, answer.output
    assert "name is served at http://here:1/v1" in answer.output
    assert (passed["host"], passed["port"]) == ("127.0.0.1", 0)
    assert (passed["config"].model_name, passed["config"].api_key, passed["config"].max_waiting) == (
        "name",
        "secret",
        7,
    )
    assert passed["config"].root == "org/name"  # where `servelab load` finds the tokenizer
    engine = passed["engine"]
    assert (engine.max_num_seqs, engine.kv_cache_dtype, engine.prefix_caching, engine.num_blocks) == (
        3,
        "int8",
        False,
        9,
    )
    assert (engine.record_trace, engine.speculative) == (False, None)  # a server lives too long for a trace


@pytest.mark.parametrize(("name", "kind"), [("ngram", NGram), ("head", DraftHead)])
def test_who_drafts(passed, name, kind):
    assert CliRunner().invoke(app, ["serve", "--speculative", name, "--k", "3"]).exit_code == 0
    assert isinstance(passed["engine"].speculative, kind)
    assert passed["engine"].speculative.k == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--speculative", "magic"], "ngram"),
        (["--kv-cache-dtype", "int3"], "int3"),
        (["--host", "256.1.1.1"], "listen"),
    ],
)
def test_what_cannot_be_is_one_sentence(monkeypatch, options, words):
    monkeypatch.setattr(servelab.model, "load_model", lambda name: toy_model())
    answer = CliRunner().invoke(app, ["serve", *options])
    assert answer.exit_code == 1
    assert words in answer.output
    assert "Traceback" not in answer.output


def test_a_port_that_is_taken(monkeypatch):
    monkeypatch.setattr(servelab.model, "load_model", lambda name: toy_model())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert answer.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in answer.output
    assert issubclass(ServerFailed, Exception)


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen, str]]:
    """A server with the real model, and its address."""
    with subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            found = re.search(r"http://\S+", run.stdout.readline())
            assert found, run.communicate()
            yield run, found[0]
        finally:
            run.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_finishes_what_it_began(process, number):
    run, url = process
    began, lines = threading.Event(), []

    def read():
        with httpx.stream("POST", f"{url}/completions", json={**BODY, "max_tokens": 40}, timeout=60) as response:
            for line in response.iter_lines():
                began.set()
                lines.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(60)
    run.send_signal(number)
    reader.join()
    said, _ = run.communicate(timeout=30)
    assert run.returncode == (-number if number == signal.SIGTERM else 0), said
    assert "Traceback" not in said
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert (
        json.loads([line for line in lines if line][-2].removeprefix("data: "))["choices"][0]["finish_reason"]
        == "length"
    )
