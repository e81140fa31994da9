"""The conductor: tasks go out, timings come back, and a contender that fails is one sentence."""

import sys

import pytest

from benchmarks.contender import process as conductor
from benchmarks.contender.process import ContenderFailed, Process, contenders
from benchmarks.contender.protocol import Setup, Task

SETUP = Setup("m", "float32", 1, 2, 64, 64)
FAKE = """
import json, os, sys
print("loading", file=sys.stderr)
setup = json.loads(sys.stdin.readline())
if setup["model"] == "broken":
    sys.exit("cannot load the model")
print(json.dumps({"versions": {"fake": os.environ["FLAVOUR"]}}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    if task["decode_steps"] == 13:
        print(json.dumps({"error": "RuntimeError: unlucky"}), flush=True)
    elif task["decode_steps"] == 0:
        os._exit(3)
    else:
        answer = {"prefill_s": 1.0, "step_s": [0.1] * task["decode_steps"], "token_ids": task["prompts"]}
        print(json.dumps(answer | {"peak_bytes": 1}), flush=True)
"""


def fake(setup=SETUP, code=FAKE):
    return Process("fake", [sys.executable, "-c", code], {"FLAVOUR": "vanilla"}, setup)


def test_a_task_goes_out_and_its_timing_comes_back():
    with fake() as process:
        assert process.versions == {"fake": "vanilla"}
        timing = process.run(Task([[1, 2, 3]], 4))
        assert timing.step_s == [0.1] * 4
        assert timing.token_ids == [[1, 2, 3]]
    assert process._process.returncode == 0


def test_one_that_does_not_start_says_why():
    with (
        pytest.raises(ContenderFailed, match="fake ended with code 1: cannot load the model"),
        fake(Setup("broken", "float32", 1, 2, 64, 64)),
    ):
        pass


def test_one_that_dies_says_so_and_one_that_refuses_goes_on():
    with fake() as process:
        with pytest.raises(ContenderFailed, match="fake: RuntimeError: unlucky"):
            process.run(Task([[1]], 13))
        assert process.run(Task([[1]], 1)).prefill_s == 1.0
        with pytest.raises(ContenderFailed, match="fake ended with code 3: loading"):
            process.run(Task([[1]], 0))


def test_one_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(conductor, "PATIENCE_S", 0.2)
    stubborn = FAKE + "\nimport time\ntime.sleep(60)\n"
    with fake(code=stubborn) as process:
        process.run(Task([[1]], 1))
    assert process._process.returncode < 0


def test_vllm_without_its_environment_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(conductor, "VLLM_ENVIRONMENT", tmp_path)
    with pytest.raises(ContenderFailed, match="run `make vllm`"):
        contenders(SETUP, ["servelab", "vLLM"])
    assert [process.name for process in contenders(SETUP, ["servelab"])] == ["servelab"]
