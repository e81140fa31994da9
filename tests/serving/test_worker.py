"""The engine's thread: many clients, those who leave, those who are too many, and an engine that fails."""

import asyncio
import json
import random
import threading
import time

import httpx
import pytest

from servelab.engine import Engine, EngineConfig, RequestMetrics, RequestOutput
from servelab.engine.runner import Runner
from servelab.serving import EngineWorker, Stream

LONG = {"max_tokens": 200, "ignore_eos": True}
EVERY_STEP = 10_000


@pytest.fixture
def gate(monkeypatch) -> threading.Semaphore:
    """Engines compute as many steps as are released."""
    steps, run = threading.Semaphore(0), Runner.run

    def wait_and_run(self, rows, drafts=()):
        assert steps.acquire(timeout=20)
        return run(self, rows, drafts)

    monkeypatch.setattr(Runner, "run", wait_and_run)
    return steps


def test_many_clients_at_once_get_what_each_would_alone(server):
    prompts = [f"Prompt {number}" for number in range(24)]
    alone = [server.post(prompt=prompt, max_tokens=20).json()["choices"][0]["text"] for prompt in prompts]
    together: dict[str, str] = {}

    def ask(prompt):
        together[prompt] = server.post(prompt=prompt, max_tokens=20).json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[prompt] for prompt in prompts] == alone
    server.wait_until_idle()


def leave_stream(server, chunks: int) -> None:
    """A client that reads so many chunks and goes."""
    body = {"model": "toy", "prompt": "Hello", "stream": True, "temperature": 0, **LONG}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=20) as response:
        lines = response.iter_lines()
        for _ in range(chunks):
            assert next(lines).startswith("data: ")
            next(lines)


def test_a_client_that_leaves_a_stream_frees_its_blocks_at_once(serve, gate):
    """Mid-decode (vllm#9428): its request is aborted, not computed to its end for nobody."""
    server = serve()
    gate.release(40)  # some tokens are parts of a character, and no chunk
    leave_stream(server, 3)
    while server.worker.num_requests:
        time.sleep(0.005)
    gate.release(2)
    server.wait_until_idle()
    ended = server.numbers()
    assert (ended["vllm:request_success_totalabort"], ended["vllm:request_success_totallength"]) == (1, 0)
    assert ended["vllm:generation_tokens_total"] <= 42 < LONG["max_tokens"]


def test_a_client_that_does_not_read_costs_one_output_an_answer(toy_model):
    """What has not been read yet is joined; nothing of it is lost."""
    worker = EngineWorker(Engine(toy_model, EngineConfig(num_blocks=64)))
    stream = Stream(worker, ["a", "b"], n=2)
    for token in range(5):
        for index in (0, 1):
            reason = "length" if token == 4 else None
            ids, metrics = list(range(token + 1)), RequestMetrics(0.0, 1)
            stream.put(RequestOutput("b", index, ids, "x" * len(ids), [token], "x", reason, None, metrics))
    assert len(stream._unread) == 2

    async def read():
        return [await anext(iterator) for _ in range(2)]

    iterator = aiter(stream)
    assert [
        (place, output.delta_token_ids, output.delta_text, output.finish_reason)
        for place, output in asyncio.run(read())
    ] == [(place, [0, 1, 2, 3, 4], "xxxxx", "length") for place in (2, 3)]


def test_a_client_that_leaves_while_its_answer_is_made_frees_its_blocks(server):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={"model": "toy", "prompt": ["Hello"] * 30, **LONG}, timeout=0.2)
    server.wait_until_idle()
    assert server.numbers()["vllm:request_success_totalabort"] > 0  # they did not end by themselves
    assert server.post(prompt="Hello").status_code == 200


def test_a_client_that_leaves_while_it_waits_frees_its_place(serve, gate):
    server = serve({"max_num_seqs": 1})
    first = threading.Thread(target=server.post, kwargs={"prompt": "Hello", "ignore_eos": True})
    first.start()
    while not server.worker.num_requests:
        time.sleep(0.005)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={"model": "toy", "prompt": "Hi", **LONG}, timeout=0.3)
    gate.release(2)  # of the 8 that the first one takes
    while server.worker.num_requests > 1:
        time.sleep(0.005)
    assert first.is_alive()
    gate.release(EVERY_STEP)
    first.join()
    server.wait_until_idle()


def test_a_client_that_leaves_amid_its_prefill_frees_its_blocks(serve, gate):
    server = serve({"max_num_batched_tokens": 16})
    gate.release(2)  # of the 19 that the prompt takes
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={"model": "toy", "prompt": "x" * 300, **LONG}, timeout=0.5)
    assert server.engine.cache.num_free < server.engine.cache.num_slots // 4
    while server.worker.num_requests:
        time.sleep(0.005)
    gate.release(2)
    server.wait_until_idle()
    assert gate.acquire(blocking=False)  # one step was enough


def test_too_many_requests_are_sent_away_and_may_come_again(serve, gate):
    server = serve({"max_num_seqs": 1}, max_waiting=1)
    inside = [threading.Thread(target=server.post, kwargs={"prompt": "Hello"}) for _ in range(2)]
    for thread in inside:
        thread.start()
    while server.worker.num_requests < 2:
        time.sleep(0.005)
    refused = server.post(prompt="x")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert "try again later" in refused.json()["error"]["message"]
    gate.release(EVERY_STEP)
    for thread in inside:
        thread.join()
    server.wait_until_idle()
    assert server.post(prompt="x").status_code == 200


def test_more_prompts_than_there_is_room_for_ever_are_a_400(serve):
    answer = serve({"max_num_seqs": 2}, max_waiting=1).post(prompt=["x"] * 4)
    assert answer.status_code == 400
    assert "expected at most 3 prompts at a time, got 4" in answer.json()["error"]["message"]


def test_a_step_that_fails_is_a_500_for_its_requests_alone(server, monkeypatch):
    run, faults = server.engine.runner.run, []

    def fail_once(rows, drafts=()):
        if not faults:
            faults.append(1)
            raise RuntimeError("planted")
        return run(rows, drafts)

    monkeypatch.setattr(server.engine.runner, "run", fail_once)
    failed = server.post(prompt="Hello")
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "internal_server_error"
    assert "planted" not in failed.text
    assert server.post(prompt="Hello").status_code == 200
    assert server.client.get("/health").status_code == 200
    server.wait_until_idle()


def test_a_stream_whose_step_fails_ends_with_an_error(server, monkeypatch):
    run, steps = server.engine.runner.run, []

    def fail_fifth(rows, drafts=()):
        steps.append(1)
        if len(steps) == 5:
            raise RuntimeError("planted")
        return run(rows, drafts)

    monkeypatch.setattr(server.engine.runner, "run", fail_fifth)
    lines = [line for line in server.post(prompt="Hello", stream=True, ignore_eos=True).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "internal_server_error"
    server.wait_until_idle()


def test_faults_that_are_not_in_a_row_do_not_end_the_engine(server, monkeypatch):
    run, steps = server.engine.runner.run, []

    def fail_now_and_then(rows, drafts=()):
        steps.append(1)
        if len(steps) % 4 == 0:
            raise RuntimeError("planted")
        return run(rows, drafts)

    monkeypatch.setattr(server.engine.runner, "run", fail_now_and_then)
    codes = [server.post(prompt="Hello", max_tokens=2, ignore_eos=True).status_code for _ in range(24)]
    assert codes.count(500) > 5
    assert server.worker.is_alive


def test_an_engine_that_keeps_failing_ends_the_server_and_nobody_hangs(serve, monkeypatch):
    server = serve()

    def fail(rows, drafts=()):
        raise RuntimeError("planted")

    monkeypatch.setattr(server.engine.runner, "run", fail)
    codes = []
    for _ in range(8):
        try:
            codes.append(server.post(prompt="Hello").status_code)
        except httpx.TransportError:  # it is gone
            break
    assert codes[:4] == [500] * 4
    assert set(codes) <= {500, 503}
    server.thread.join(10)
    assert not server.thread.is_alive()
    assert "planted" in str(server.worker.fault)


def test_told_to_stop_it_aborts_what_runs_and_ends(serve):
    server = serve({"num_blocks": 2000})
    body = {"model": "toy", "prompt": "Hello", "stream": True, "n": 4, **LONG}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=20) as response:
        next(response.iter_lines())
        began = time.monotonic()
        server.server.should_exit = True
        server.thread.join(20)
        assert not server.thread.is_alive()
        assert time.monotonic() - began < 10
    assert not server.engine.has_unfinished()
    server.engine.cache.check_integrity()


def test_told_to_stop_it_tells_those_whom_it_aborts(serve, monkeypatch):
    """A whole answer is a 503, a stream ends with an error and [DONE]."""
    run = Runner.run
    monkeypatch.setattr(Runner, "run", lambda *arguments: time.sleep(0.05) or run(*arguments))
    server = serve()
    whole, lines = [], []

    def read():
        body = {"model": "toy", "prompt": "Hello", "stream": True, **LONG}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=20) as response:
            lines.extend(line for line in response.iter_lines() if line)

    def ask():
        whole.append(
            httpx.post(f"{server.url}/v1/completions", json={"model": "toy", "prompt": "Hi", **LONG}, timeout=20)
        )

    threads = [threading.Thread(target=read), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    while server.worker.num_requests < 2 or not lines:
        time.sleep(0.01)
    server.server.should_exit = True
    for thread in threads:
        thread.join()
    assert whole[0].status_code == 503
    assert whole[0].json()["error"]["message"] == "the server stops"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["message"] == "the server stops"
    assert lines[-1] == "data: [DONE]"


def test_random_clients_come_and_go(serve):
    """200 streams, some left at a random chunk: no 5xx, no block lost."""
    server, chance = serve({"max_num_seqs": 8, "num_blocks": 160}), random.Random(0)
    codes: list[int] = []

    def visit(chunks: int | None, max_tokens: int, prompt: str) -> None:
        body = {"model": "toy", "prompt": prompt, "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            codes.append(response.status_code)
            for number, _ in enumerate(response.iter_lines()):
                if number == chunks:
                    return

    threads = [
        threading.Thread(
            target=visit,
            args=(chance.choice([None, 0, 2, 5, 20]), chance.randint(1, 60), "x" * chance.randint(1, 100)),
        )
        for _ in range(200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 200
    server.wait_until_idle()


def test_a_negative_number_of_waiting_requests():
    with pytest.raises(ValueError, match="expected max_waiting of at least 0, got -1"):
        EngineWorker(None, max_waiting=-1)
