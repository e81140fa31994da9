"""What HTTP costs: who takes part, in turns, and what becomes of the times; and our server as it is started there."""

import asyncio
from contextlib import contextmanager

import pytest

from benchmarks.contender.process import ContenderFailed
from benchmarks.report import Report
from benchmarks.section import serving
from benchmarks.section.serving import ENGINE, HTTP, VLLM, Load, run
from benchmarks.suite import FOLDER
from servelab.serving.environment import EnvironmentMissing


def fake(seconds, journal, name):
    """Takes so many seconds for whatever it is asked, and notes what that was."""

    @contextmanager
    def start(bench):
        def generate(texts, output):
            journal.append((name, texts, output))
            return seconds

        yield generate
        journal.append((name, "ended"))

    return start


def test_rates_and_ratios_of_the_same_prompts_in_turns(toy_bench):
    journal: list = []
    starts = {name: fake(s, journal, name) for name, s in ((ENGINE, 1.0), (HTTP, 1.25), (VLLM, 2.0))}
    result = run(toy_bench, [Load(2, 10, 5)], starts)
    assert result.find("output", system=HTTP, requests=2).samples == pytest.approx((8.0,) * toy_bench.rounds)
    assert {target.name: (target.value, target.bar, target.is_met) for target in result.targets} == {
        "servelab over HTTP against engine alone, 2 x 10 + 5 tokens": (pytest.approx(0.8), 0.9, False),
        "servelab over HTTP against vLLM over HTTP, 2 x 10 + 5 tokens": (pytest.approx(1.6), 1.1, True),
    }
    asked = [entry for entry in journal[3:] if entry[1] != "ended"]  # the first three warm up
    assert [name for name, _, _ in asked[:6]] == [ENGINE, HTTP, VLLM, HTTP, VLLM, ENGINE]
    assert asked[0][1] == asked[1][1] == asked[2][1] != asked[3][1]
    assert [len(text) for text in asked[0][1]] == [10, 10]
    assert [entry for entry in journal if entry[1] == "ended"] == [(name, "ended") for name in (VLLM, HTTP, ENGINE)]


def test_without_vllms_environment_it_is_left_out(toy_bench):
    @contextmanager
    def missing(bench):
        raise EnvironmentMissing("run make vllm")
        yield

    starts = {ENGINE: fake(1.0, [], ENGINE), HTTP: fake(1.0, [], HTTP), VLLM: missing}
    assert len(run(toy_bench, [Load(2, 10, 5)], starts).targets) == 1


def test_a_stream_that_stops_short_is_no_measurement(monkeypatch):
    async def short(url, text, output):
        return output - 1

    monkeypatch.setattr(serving, "stream_one", short)
    with pytest.raises(ContenderFailed, match=r"expected 5 output tokens of each of 1 streams, got \[4\]"):
        serving.client("http://127.0.0.1:1")([[1]], 5)


async def answer(sent: bytes) -> int:
    """What a client makes of these bytes from a server."""

    async def say(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(say, "127.0.0.1", 0)
    async with listener:
        return await serving.stream_one(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", [1], 5)


def test_a_whole_stream_says_how_many_tokens_it_had():
    whole = b'HTTP/1.1 200 OK\r\n\r\ndata: {"usage":{"completion_tokens":5}}\n\ndata: [DONE]\n\n'
    assert asyncio.run(answer(whole)) == 5
    for broken in (whole.replace(b"200", b"503"), whole.replace(b"[DONE]", b""), whole.replace(b"completion_", b"")):
        with pytest.raises(ContenderFailed, match="expected a whole stream"):
            asyncio.run(answer(broken))


def test_what_the_course_says_of_http_was_measured():
    """At 16 streams: at least 90 % of the engine's own rate, and at least 1.1 times vLLM's."""
    section = Report.load(FOLDER / "serving.json").sections["http"]
    bars = {(ENGINE if ENGINE in target.name else VLLM, target.bar) for target in section.targets}
    assert bars == {(ENGINE, 0.9), (VLLM, 1.1)}
    assert all(target.is_met for target in section.targets)
    assert {measurement.case["requests"] for measurement in section.measurements} == {16}
    assert not section.commit.endswith("+")
