"""The line protocol, and what counts as prefill and as decode."""

import json
import subprocess
import sys
import time

import pytest

from benchmarks.contender.process import ROOT
from benchmarks.contender.protocol import Task, peak_bytes, time_steps

ECHO = """
import os, sys
from benchmarks.contender.protocol import Timing, serve

class Echo:
    def __init__(self, setup):
        print("a library that prints")
        os.write(1, b"and one that writes to descriptor 1\\n")
        self.versions = {"echo": setup.model}

    def run(self, task):
        if not task.prompts:
            raise ValueError("no prompts")
        return Timing(1.0, [0.5] * task.decode_steps, task.prompts, 7)

serve(Echo)
"""
SETUP = {
    "model": "m", "dtype": "float32", "threads": 1, "max_num_seqs": 1, "max_model_len": 8, "token_budget": 8,
}  # fmt: skip


def converse(*lines):
    process = subprocess.run(
        [sys.executable, "-c", ECHO],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()], process.stderr


def test_answers_are_one_line_each_and_prints_go_elsewhere():
    answers, errors = converse(SETUP, {"prompts": [[1, 2]], "decode_steps": 2})
    assert answers == [
        {"versions": {"echo": "m"}},
        {"prefill_s": 1.0, "step_s": [0.5, 0.5], "token_ids": [[1, 2]], "peak_bytes": 7},
    ]
    assert "a library that prints" in errors
    assert "descriptor 1" in errors


def test_a_failed_task_is_told_and_the_next_one_runs():
    answers, _ = converse(SETUP, {"prompts": [], "decode_steps": 1}, {"prompts": [[1]], "decode_steps": 1})
    assert answers[1] == {"error": "ValueError: no prompts"}
    assert answers[2]["token_ids"] == [[1]]


def test_decode_begins_when_the_last_request_has_its_first_token():
    script = iter(
        [{"a": [1]}, {"a": [1, 2], "b": [1]}, {"a": [1, 2, 3], "b": [1, 2]}, {"a": [1, 2, 3, 4], "b": [1, 2, 3]}]
    )

    def step():
        time.sleep(0.01)
        return next(script)

    timing = time_steps(step, Task([[0], [0]], decode_steps=2))
    assert len(timing.step_s) == 2
    assert timing.prefill_s >= 0.02
    assert all(0.01 <= seconds < timing.prefill_s + 0.01 for seconds in timing.step_s)
    assert timing.token_ids == [[1, 2, 3, 4], [1, 2, 3]]


def test_a_request_that_stops_decoding_is_not_passed_over():
    script = iter([{"a": [1], "b": [1]}, {"a": [1, 2]}])
    with pytest.raises(RuntimeError, match="expected a token for each of 2 requests, got 1"):
        time_steps(lambda: next(script), Task([[0], [0]], decode_steps=1))


def test_a_process_knows_its_peak():
    assert peak_bytes() > 10_000_000
