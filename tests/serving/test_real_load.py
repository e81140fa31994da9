"""The real GuideLLM on this course's own server, each in a process of its own, as a learner starts them."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("fastapi", reason="the server's packages: pip install 'servelab[serving]'")
sys.path.insert(0, str(Path(__file__).parent))

from beside import need, servelab

from servelab.serving import Lengths, Load, Target, guidellm, run_load
from servelab.serving.target import RUNNING
from servelab.trace import LoadReport, ServiceLevel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def url():
    """The address of `servelab serve` over SmolLM2-135M, with a pool so small that requests have to wait."""
    need(guidellm.FOLDER, guidellm.TOOL, guidellm.TARGET)
    server = servelab("serve", "--port", "0", "--num-blocks", "32", stdout=subprocess.PIPE)
    try:
        address = re.search(r"http://\S+", server.stdout.readline()).group()
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            raise
        finally:
            server.stdout.close()


def test_lengths_with_a_tail_and_shared_beginnings_under_growing_concurrency(url):
    load = Load(
        streams=(1, 4),
        requests=8,
        prompt=Lengths(32, 32, 8, 96),
        output=Lengths(8, 8, 2, 24),
        shared_prefix_tokens=32,
        seed=7,
        service_level=ServiceLevel(ttft_ms=60_000, tpot_ms=60_000),
    )
    report = run_load(url, load, progress=False)
    alone, together = report.points
    assert [point.completed for point in report.points] == [8, 8]
    assert [point.good for point in report.points] == [8, 8]
    assert alone.concurrency <= 1
    assert 1.5 < together.concurrency <= 4
    assert 40 <= alone.prompt_tokens <= 130
    assert 2 <= alone.output_tokens <= 24
    assert alone.ttft_ms.p50 <= alone.ttft_ms.p99 < alone.latency_ms.p99
    assert max(sample.running for sample in report.samples) > 1
    assert 0 < max(sample.kv_usage for sample in report.samples) <= 1
    again = run_load(url, load, progress=False)
    lengths = [(point.prompt_tokens, point.output_tokens) for point in report.points]
    assert lengths == [(point.prompt_tokens, point.output_tokens) for point in again.points]


@pytest.mark.parametrize(
    ("words", "arrivals"),
    [
        ("--profile poisson --rates 2,4", ["poisson", "poisson"]),
        ("--profile constant --rates 2 --chat", ["constant"]),
        ("--profile sweep --levels 3 --max-streams 4", ["synchronous", "throughput", "constant"]),
        ("--profile goodput --streams 1 --max-streams 2 --ttft-ms 60000", ["concurrent", "concurrent"]),
    ],
)
def test_every_profile_from_the_command_line(url, words, arrivals):
    sizes = ["--requests", "4", "--prompt", "16", "--output", "4", "--json"]
    command = servelab("load", url, *words.split(), *sizes, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answer, said = command.communicate(timeout=300)
    assert command.returncode == 0, said
    report = LoadReport.from_json(json.loads(answer))
    assert [point.arrival for point in report.points] == arrivals
    assert all(point.completed for point in report.points)
    assert "100%" in said or report.best_streams == 2


def test_ctrl_c_ends_the_load_and_leaves_nothing(url):
    """Neither a process here nor a request on the server."""

    def wait_until_running(count, patience_s):
        deadline = time.monotonic() + patience_s
        while Target(url).metrics()[RUNNING] != count:
            assert time.monotonic() < deadline, f"expected {count} requests that run"
            time.sleep(0.1)

    words = ["--streams", "2", "--seconds", "120", "--output", "256"]
    command = servelab("load", url, *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_until_running(2, 120)
    children = psutil.Process(command.pid).children(recursive=True)
    assert len(children) >= 2  # GuideLLM and a worker of its own
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=30)
    assert command.returncode == 130
    assert said.strip().endswith("Stopped: what was measured so far is lost.")
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    wait_until_running(0, 10)
