"""What HTTP costs: the engine by itself, our server, and vLLM's, under the same load in turns.

All clients ask at once and read their streams to the end. Tokens per second are output tokens over the time from the
first question to the last answer, prefill included. The clients live in one process beside the server, on the same
cores: their time counts against the servers, and not against the engine that is measured alone.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.bench import Bench, interleave, median, prompts, ratios
from benchmarks.contender.process import OURS, ROOT, ContenderFailed, contenders
from benchmarks.contender.protocol import Task
from benchmarks.contender.servelab import BLOCK_SIZE
from benchmarks.report import Measurement, Result, Target
from benchmarks.section.compare import setup
from servelab.serving.environment import EnvironmentMissing
from servelab.serving.vllm import VLLMFailed, VLLMServer

ENGINE, HTTP, VLLM = "engine alone", "servelab over HTTP", "vLLM over HTTP"
BARS = {ENGINE: 0.9, VLLM: 1.1}
NAME = "model"  # what the servers call theirs
PATIENCE_S = 600.0  # for an answer

Generate = Callable[[Sequence[Sequence[int]], int], float]  # prompts, output tokens of each -> seconds
Start = Callable[[Bench], AbstractContextManager[Generate]]


@dataclass(frozen=True)
class Load:
    """requests: that come at once. context: prompt tokens of each; output: output tokens of each."""

    requests: int
    context: int
    output: int

    def __str__(self) -> str:
        return f"{self.requests} x {self.context} + {self.output} tokens"


LOADS = (Load(16, 100, 64), Load(16, 500, 64))
QUICK_LOADS = (Load(4, 20, 8),)


def run(bench: Bench, loads: Sequence[Load] | None = None, starts: Mapping[str, Start] | None = None) -> Result:
    """starts: who takes part, and how each is started. vLLM is left out where it has no environment.

    Raises ContenderFailed where one does not start, or answers otherwise than it should.
    """
    loads = loads or (QUICK_LOADS if bench.quick else LOADS)
    measurements: list[Measurement] = []
    targets: list[Target] = []
    with ExitStack() as stack:
        present: dict[str, Generate] = {}
        for name, start in (STARTS if starts is None else starts).items():
            bench.tell(f"starting {name}")
            try:
                present[name] = stack.enter_context(start(bench))
            except EnvironmentMissing as missing:
                bench.tell(f"{name} is left out: {missing}")
        for generate in present.values():  # warm
            generate(prompts(bench.model, loads[0].requests, 16), 4)
        for load in loads:
            rates = take_turns(bench, present, load)
            for name, samples in rates.items():
                measurements.append(Measurement("output", "tokens/s", tuple(samples), {"system": name, **vars(load)}))
            targets += judge(load, rates)
    settings = {**vars(setup(bench)), "rounds": bench.rounds, "prefix_caching": "off", "model": bench.model_name}
    return Result(tuple(measurements), tuple(targets), settings)


def take_turns(bench: Bench, present: Mapping[str, Generate], load: Load) -> dict[str, list[float]]:
    """name -> output tokens per second, one a round. In a round all get the same prompts; each round has others."""
    texts = prompts(bench.model, load.requests * bench.rounds, load.context)

    def sampler(generate: Generate) -> Callable[[], float]:
        rounds = (texts[start : start + load.requests] for start in range(0, len(texts), load.requests))
        return lambda: load.requests * load.output / generate(next(rounds), load.output)

    samplers = {name: sampler(generate) for name, generate in present.items()}
    return interleave(samplers, bench.rounds, lambda text: bench.tell(f"{load}, {text}"))


def judge(load: Load, rates: Mapping[str, Sequence[float]]) -> list[Target]:
    """Our server against each of the others."""
    return [
        Target(f"servelab over HTTP against {other}, {load}", median(ratios(rates[HTTP], rates[other])), ">=", bar)
        for other, bar in BARS.items()
        if {HTTP, other} <= set(rates)
    ]


@contextmanager
def engine_alone(bench: Bench) -> Iterator[Generate]:
    """The engine in a process of its own, without a server."""
    [process] = contenders(setup(bench), [OURS])

    def generate(texts: Sequence[Sequence[int]], output: int) -> float:
        timing = process.run(Task(texts, output - 1))
        return timing.prefill_s + sum(timing.step_s)

    with process:
        yield generate


@contextmanager
def our_server(bench: Bench) -> Iterator[Generate]:
    """`servelab serve`, with what the engine is given when it is alone."""
    given = setup(bench)
    options = {
        "port": 0,
        "served-model-name": NAME,
        "block-size": BLOCK_SIZE,
        "num-blocks": -(-given.max_model_len // BLOCK_SIZE) * given.max_num_seqs,
        "max-model-len": given.max_model_len,
        "max-num-seqs": given.max_num_seqs,
        "max-num-batched-tokens": given.token_budget,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    main = "from servelab.cli import main; main()"
    command = [sys.executable, "-c", main, "serve", bench.model_name, "--no-prefix-caching", *words]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://[^/\s]+", server.stdout.readline())
            if found is None:
                server.wait()
                log.seek(0)
                raise ContenderFailed(f"our server did not start: {log.read()[-300:].strip()}")
            yield client(found[0])
        finally:
            server.terminate()
            server.wait()


@contextmanager
def vllm_server(bench: Bench) -> Iterator[Generate]:
    """Raises EnvironmentMissing, ContenderFailed."""
    given = setup(bench)
    server = VLLMServer(
        given.model,
        name=NAME,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        prefix_caching=False,
        kv_cache_gb=2,
        options=("--max-num-batched-tokens", str(given.token_budget)),
        progress=False,
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(server)
        except VLLMFailed as reason:
            raise ContenderFailed(str(reason)) from None
        yield client(server.url)


STARTS: dict[str, Start] = {ENGINE: engine_alone, HTTP: our_server, VLLM: vllm_server}


def client(url: str) -> Generate:
    return lambda texts, output: asyncio.run(stream_all(url, texts, output))


async def stream_all(url: str, texts: Sequence[Sequence[int]], output: int) -> float:
    """Seconds until all streams have ended. Raises ContenderFailed where one has not as many tokens as it should."""
    begin = time.perf_counter()
    counts = await asyncio.gather(*[stream_one(url, text, output) for text in texts])
    seconds = time.perf_counter() - begin
    if counts != [output] * len(texts):
        raise ContenderFailed(f"{url}: expected {output} output tokens of each of {len(texts)} streams, got {counts}")
    return seconds


async def stream_one(url: str, text: Sequence[int], output: int) -> int:
    """How many output tokens the server says that it sent.

    A bare connection whose bytes are not looked at before the end: a client library would take from a server on the
    same cores about as much as the server's own HTTP does.
    """
    body = {
        "model": NAME,
        "prompt": list(text),
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    content = json.dumps(body).encode()
    host = url.removeprefix("http://")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(*host.rsplit(":", 1))
    try:
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read(-1)
    finally:
        writer.close()
    found = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    if not answer.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in answer or not found:
        raise ContenderFailed(f"{url}: expected a whole stream, got one of {len(answer)} bytes: {answer[:300]!r}")
    return int(found[-1])
