"""`servelab simulate` passes its options on, prints what came out, and says in one sentence what is in the way."""

import json

import pytest
from typer.testing import CliRunner

from servelab.cli import app
from servelab.trace import Trace

SMALL = ("--requests", "12", "--mean-tokens", "60", "--max-tokens", "200")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    return lambda *arguments: CliRunner().invoke(app, ["simulate", *map(str, arguments)])


@pytest.fixture
def numbers(run, tmp_path):
    """Run with `--json` and return what was written."""

    def get(*arguments):
        path = tmp_path / "numbers.json"
        answer = run(*arguments, "--json", path)
        assert answer.exit_code == 0, answer.output
        return json.loads(path.read_text())

    return get


def test_without_options_it_is_70b_on_an_h100(run):
    answer = run(*SMALL)
    assert answer.exit_code == 0, answer.output
    words = " ".join(answer.output.split())
    for part in ("Llama-3-70B", "H100 SXM", "= KV cache", "31,082 tokens at 327,680 bytes each", "preemptions"):
        assert part in words


def test_what_is_printed_is_what_is_written(run, numbers):
    written = numbers(*SMALL, "--rate", 5, "--seed", 3)
    assert written["assumptions"]["model"] == "Llama-3-70B"
    assert written["load"] == {
        **{"requests": 12, "mean_tokens": 60, "max_tokens": 200, "prompt_tokens": None, "output_tokens": None},
        **{"rate": 5, "users": None, "seed": 3},
    }
    assert written["drafting"] is None
    assert len(written["requests"]) == written["result"]["requests"] == 12
    times = [one["arrival_s"] for one in written["requests"]]
    assert 0 < times[0] < times[-1]
    assert f"{written['result']['steps']:,}" in run(*SMALL, "--rate", 5, "--seed", 3).output
    assert numbers(*SMALL, "--rate", 5, "--seed", 3) == written
    assert numbers(*SMALL, "--rate", 5, "--seed", 4)["result"] != written["result"]


def test_a_trace_that_the_widgets_play(run, tmp_path):
    from servelab.widgets import PageTableWidget

    path = tmp_path / "trace.json"
    answer = run(*SMALL, "--trace", path)
    assert answer.exit_code == 0, answer.output
    assert f'PageTableWidget(Trace.load("{path}"))' in answer.output
    assert PageTableWidget(Trace.load(path)).block_table


def test_paged_serves_more_than_contiguous(numbers):
    load = ("--requests", 80, "--prompt-tokens", 800, "--output-tokens", 100, "--max-model-len", 4096)
    paged = numbers(*load)["result"]
    contiguous = numbers(*load, "--kv-cache", "contiguous")["result"]
    assert contiguous["peak_running"] == 7
    assert paged["peak_running"] >= 35
    exact = numbers(*load, "--kv-cache", "contiguous", "--reserve", "exact")["result"]
    assert exact["peak_running"] == 34  # the slots of 1,942 blocks, by 900


def test_speculation_and_users(numbers):
    load = ("--requests", 6, "--prompt-tokens", 100, "--output-tokens", 200, "--users", 1)
    plain, drafted = numbers(*load), numbers(*load, "--k", 4, "--acceptance", 0.8, "--draft-cost", 0.05)
    assert drafted["drafting"] == {"k": 4, "acceptance": 0.8, "draft_cost": 0.05}
    assert plain["result"]["peak_running"] == 1
    assert drafted["result"]["output_tokens_per_s"] > 1.8 * plain["result"]["output_tokens_per_s"]


def test_the_card_is_what_was_asked_for(numbers):
    options = {
        "--model": "qwen3-8",
        "--gpu": "l4",
        "--weight-bytes": 2,
        "--embedding-bytes": 4,
        "--kv-bytes": 1,
        "--memory-gb": 24,
        "--usable-share": 0.95,
        "--efficiency": 0.5,
        "--overhead-ms": 3,
        "--compute-dtype": "float16",
        "--block-size": 32,
        "--max-num-batched-tokens": 512,
        "--max-num-seqs": 8,
    }
    written = numbers(*SMALL, *[part for pair in options.items() for part in pair])
    assert written["assumptions"] == {
        "model": "Qwen3-8B",
        "gpu": "L4",
        "memory_bytes": 24_000_000_000,
        "usable_share": 0.95,
        "bytes_per_parameter": 2,
        "bytes_per_embedding": 4,
        "compute_dtype": "float16",
        "bytes_per_element": 1,
        "block_size": 32,
        "step_tokens": 512,
        "step_requests": 8,
        "efficiency": 0.5,
        "overhead_s": 0.003,
    }
    assert written["result"]["peak_running"] == 8


@pytest.mark.parametrize(
    ("number", "parts"),
    [
        (1, ["327,680 bytes each", "4,096 reserved each", "35", "24", "usable_share 0.9 only 3.3 GB"]),
        (2, ["acceptance", "One user gains most", "35 ms without drafts, 35 ms with them"]),
        (3, ["163,840", "2,621,440", "a server cannot switch it on"]),
    ],
)
def test_an_example_says_what_it_assumes_and_what_comes_out(run, number, parts):
    answer = run("--example", number)
    assert answer.exit_code == 0, answer.output
    words = " ".join(answer.output.split())
    for part in ("What is assumed (nothing here is measured)", "usable_share", "efficiency", *parts):
        assert part in words


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--example", "4"], "expected --example as one of (1, 2, 3), got 4"),
        (["--model", "llama"], "expected one of SmolLM2-135M"),
        (["--gpu", "abacus"], "expected one of A100 80GB SXM"),
        (["--gpu", "t4"], "beside Llama-3-70B"),
        (["--compute-dtype", "int3"], "expected a dtype of H100 SXM"),
        (["--rate", "1", "--users", "2"], "expected --rate or --users, got both: 1.0 and 2"),
        (["--prompt-tokens", "5"], "expected --prompt-tokens and --output-tokens, got 5 and None"),
        (["--max-tokens", "9000"], "expected requests of at most 8192 tokens"),
        (["--kv-cache", "heap"], "expected kv_cache in ('paged', 'contiguous'), got 'heap'"),
        (["--scheduling", "lazy"], "expected scheduling in"),
        (["--json", "/nowhere/at/all.json"], "expected a folder to write /nowhere/at/all.json to, got none there"),
        (["--json", "/"], "expected a file to write to, got a folder: /"),
        (["--json", ""], "expected a file to write to, got a folder: ."),
        (["--trace", "/nowhere/at/all.json"], "expected a folder to write /nowhere/at/all.json to, got none there"),
    ],
)
def test_what_is_in_the_way_is_one_sentence(run, options, sentence):
    answer = run("--requests", "400", "--mean-tokens", "4000" if "9000" in options else "60", *options)
    assert answer.exit_code == 1
    assert sentence in answer.output
    assert "Traceback" not in answer.output


@pytest.mark.parametrize(
    "wrong",
    [["--requests", "0"], ["--usable-share", "2"], ["--memory-gb", "inf"], ["--acceptance", "2"], ["--k", "-1"]],
)
def test_options_that_cannot_be(run, wrong):
    assert run(*wrong).exit_code == 2
