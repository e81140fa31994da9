"""`servelab load`: what becomes of its options, what it prints, and its exit codes."""

import json

import pytest
import rich
from typer.testing import CliRunner

from servelab import serving
from servelab.cli import app
from servelab.serving.environment import EnvironmentMissing
from servelab.serving.load import Lengths
from servelab.serving.target import TargetFailed
from servelab.trace import LoadPoint, LoadReport, MemorySample, Quantiles, ServiceLevel

LATENCY = Quantiles(30, 20, 60, 90)


def point(streams=4, completed=8, **changes):
    latency = LATENCY if completed else None
    fields = {
        "arrival": "concurrent",
        "streams": streams,
        "rate_per_s": None,
        "start_s": 0.0,
        "end_s": 4.0,
        "concurrency": 3.94,
        "completed": completed,
        "failed": 1,
        "incomplete": 0,
        "prompt_tokens": 66.4,
        "output_tokens": 32.0,
        "requests_per_s": 2.0,
        "output_tokens_per_s": 1234.56,
        "ttft_ms": latency,
        "itl_ms": latency,
        "tpot_ms": latency,
        "latency_ms": latency,
        "good": 6,
        "errors": ["the server is busy"],
    }
    return LoadPoint(**(fields | changes))


def report(*points, level=None, samples=()):
    words = ("http://h", "toy", "concurrent", "guidellm 0.8.1", "2026-01-01", "64 tokens", "32 tokens")
    return LoadReport(*words, 7, level or ServiceLevel(), list(points), list(samples))


@pytest.fixture
def load(monkeypatch):
    """Run the command; `load.answer` is what the load comes to, `load.asked` what was asked for."""

    def run(*words):
        def run_load(url, sent, **options):
            run.asked = (url, sent, options)
            if isinstance(run.answer, BaseException):
                raise run.answer
            return run.answer

        monkeypatch.setattr(serving, "run_load", run_load, raising=False)
        monkeypatch.setattr(rich, "_console", None)  # one that an earlier test made has that test's width
        return CliRunner().invoke(app, ["load", "http://h", *words], env={"COLUMNS": "200"})

    run.answer = report(point())
    return run


def test_it_prints_three_lines_a_level(load):
    load.answer = report(point(), point(None, 4, rate_per_s=2.5, prompt_tokens=69.4), level=ServiceLevel(ttft_ms=50))
    answer = load()
    assert answer.exit_code == 0
    first, second = [line for line in answer.output.splitlines() if "1,234.6" in line]
    assert first.split() == ["4", "3.9", "8", "1", "1,234.6", "p50", "20", "20", "20", "20", "67%", "1.50"]
    assert second.split()[0] == "2.5/s"
    assert answer.output.count("90") == 8
    assert "toy at http://h, guidellm 0.8.1, seed 7: prompts of 64 tokens, answers of 32 tokens." in answer.output
    assert "Sent were 67 prompt tokens and written 32 output tokens a request, in the mean." in answer.output
    assert answer.output.count("Failed: the server is busy") == 1
    assert "its memory is not shown" in answer.output


def test_memory_and_the_result_of_a_search_are_told(load):
    load.answer = report(point(), samples=[MemorySample(0, 0.25, 4, 0), MemorySample(1, 0.125, 4, 3)])
    load.answer.best_streams = 4
    answer = load()
    assert "KV cache in use: at most 25.0%; requests that waited: at most 3." in answer.output
    assert "4 streams are the most within the service level." in answer.output
    load.answer.best_streams, load.answer.profile = None, "goodput"
    assert "No number of streams that was tried kept the service level." in load().output


def test_options_become_a_load(load):
    words = "--profile poisson --rates 0.5,2 --requests 9 --seconds 5 --prompt 64 --prompt-stdev 64 --prompt-min 8"
    words += (
        " --prompt-max 256 --output 16 --prefix 100 --prefixes 2 --seed 7 --ttft-ms 500 --tpot-ms 50 --latency-ms 9000"
    )
    words += " --chat --model toy --tokenizer /t --api-key secret --metrics-urls http://a,http://b --max-streams 8"
    assert load(*words.split()).exit_code == 0
    url, sent, options = load.asked
    assert url == "http://h"
    assert (sent.profile, sent.rates, sent.requests, sent.seconds, sent.max_streams) == ("poisson", [0.5, 2], 9, 5, 8)
    assert (sent.prompt, sent.output) == (Lengths(64, 64, 8, 256), Lengths(16))
    assert (sent.shared_prefix_tokens, sent.num_shared_prefixes, sent.seed, sent.chat) == (100, 2, 7, True)
    assert sent.service_level == ServiceLevel(500, 50, 9000)
    assert options == {
        "model": "toy",
        "tokenizer": "/t",
        "api_key": "secret",
        "metrics_urls": ["http://a", "http://b"],
    }


def test_json_is_a_report_that_can_be_read_again(load):
    answer = load("--json")
    assert LoadReport.from_json(json.loads(answer.stdout)) == load.answer


def test_pictures_are_a_page_that_needs_no_network(load, tmp_path):
    load.answer = report(point(), samples=[MemorySample(0, 0.25, 4, 0)])
    answer = load("--html", str(tmp_path / "load.html"))
    assert answer.exit_code == 0
    page = (tmp_path / "load.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 2
    assert 'src="http' not in page
    assert "<p>At most 25.0 % of the KV cache is in use" in page


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (TargetFailed("No answer from http://h"), "No answer from http://h"),
        (EnvironmentMissing("run `make guidellm`"), "run `make guidellm`"),
        (ValueError("expected --tokenizer"), "expected --tokenizer"),
    ],
)
def test_what_is_in_the_way_is_one_sentence(load, reason, said):
    load.answer = reason
    answer = load()
    assert answer.exit_code == 1
    assert answer.stderr.strip() == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--streams 1,x", "expected --streams as numbers such as 1,2,4, got '1,x'"),
        ("--html /nowhere/at/all.html", "expected a folder to write /nowhere/at/all.html to, got none there"),
        ("--rates inf", "expected rates above 0"),
        ("--rates fast", "expected --rates as numbers such as 1,2,4, got 'fast'"),
        ("--profile storm", "expected profile as one of"),
        ("--ttft-ms 0", "expected ttft_ms as a positive number of milliseconds"),
    ],
)
def test_a_load_that_cannot_be_is_one_sentence(load, words, said):
    answer = load(*words.split())
    assert answer.exit_code == 1
    assert said in answer.stderr


def test_nothing_measured_is_a_failure_that_says_why(load):
    load.answer = report(point(completed=0))
    answer = load()
    assert answer.exit_code == 1
    assert "No request came to its end: the server is busy" in answer.stderr
    load.answer = report(point(completed=0, errors=[]))
    assert "all were cut off: give it more seconds" in load().stderr


def test_an_interruption(load):
    load.answer = KeyboardInterrupt()
    answer = load()
    assert answer.exit_code == 130
    assert answer.stderr.strip() == "Stopped: what was measured so far is lost."
