"""The comparison: who takes part, in turns, with the same tasks; and what becomes of the timings."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.contender.protocol import Setup, Timing
from benchmarks.section import compare
from benchmarks.section.compare import Load, agreement, judge, run

SETUP = Setup("toy", "float32", 1, 2, 512, 256)


class FakeProcess:
    """Answers each task with fixed speeds, and notes it."""

    def __init__(self, name, step_s, journal, last_token=1):
        self.name, self.step_s, self.journal, self.last_token = name, step_s, journal, last_token
        self.versions, self.setup = {name: "1"}, SETUP

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.journal.append((self.name, "ended"))

    def run(self, task):
        self.journal.append((self.name, task))
        tokens = [[5] * task.decode_steps + [self.last_token] for _ in task.prompts]
        return Timing(0.5, [self.step_s] * task.decode_steps, tokens, 10**9)


@pytest.fixture
def measured(toy_bench):
    journal = []
    processes = [FakeProcess("servelab", 0.01, journal), FakeProcess("vLLM", 0.02, journal, last_token=2)]
    return run(toy_bench, loads=[Load(2, 50), Load(1, 10)], decode_steps=3, processes=processes), journal


def test_the_same_tasks_in_turns(measured):
    _, journal = measured
    tasks = [(name, task) for name, task in journal if task != "ended"][2:]  # the first two warm up
    assert [name for name, _ in tasks] == ["servelab", "vLLM", "vLLM", "servelab"] * 2
    for (_, one), (_, other) in zip(tasks[::2], tasks[1::2], strict=True):
        assert one.prompts == other.prompts
    assert [len(task.prompts) for _, task in tasks[::2]] == [2, 2, 1, 1]
    assert tasks[0][1].prompts != tasks[2][1].prompts  # another round, other prompts
    assert journal[-2:] == [("vLLM", "ended"), ("servelab", "ended")]


def test_speeds_and_ratios(measured):
    result, _ = measured
    assert result.find("prefill", system="vLLM", requests=2).samples == (200, 200)
    assert result.find("decode", system="servelab", requests=2).median == pytest.approx(200)
    assert result.find("decode step", system="vLLM", requests=1).samples == pytest.approx((20,) * 6)
    assert {target.name: (round(target.value, 3), target.bar) for target in result.targets} == {
        "decode against vLLM, 2 x 50 tokens": (2, 1.25),
        "prefill against vLLM, 2 x 50 tokens": (1, 1),
        "decode against vLLM, 1 x 10 tokens": (2, 1.25),
        "prefill against vLLM, 1 x 10 tokens": (1, 1),
    }
    assert result.versions == {"servelab": "1", "vLLM": "1"}
    assert result.find("same tokens", requests=2).samples == (0.75, 0.75)


def test_tokens_count_as_the_same_up_to_the_first_that_differs():
    timing = Timing(1, [1], [[1, 2, 3, 4], [1, 2]])
    assert agreement([timing], [replace(timing, token_ids=[[1, 9, 3, 4], [1, 2, 7]])]) == [0.5]


def test_the_slow_one_sits_the_long_load_out(toy_bench):
    journal = []
    processes = [FakeProcess(name, 0.01, journal) for name in ("servelab", compare.SLOW)]
    timings = compare.take_turns(toy_bench, processes, Load(16, 1500), 1)
    assert list(timings) == ["servelab"]
    assert list(compare.take_turns(toy_bench, processes, Load(1, 10), 1)) == ["servelab", compare.SLOW]


def test_without_us_there_is_nothing_to_hold_against():
    measurements, targets = judge(Load(1, 10), {"vLLM": [Timing(1, [1], [[1]])]})
    assert [measurement.name for measurement in measurements] == [
        "prefill",
        "decode",
        "decode step",
        "peak memory so far",
    ]
    assert targets == []


def test_vllm_is_left_out_where_it_has_no_environment(toy_bench, tmp_path, monkeypatch):
    asked, told = [], []
    monkeypatch.setattr(compare, "VLLM_ENVIRONMENT", tmp_path / "missing")
    monkeypatch.setattr(compare, "contenders", lambda setup, names: asked.append((setup, names)) or [])
    run(replace(toy_bench, tell=told.append), loads=[])
    ((setup, names),) = asked
    assert "vLLM" not in names
    assert (setup.model, setup.dtype, setup.max_model_len) == ("toy", "float32", 512)
    assert told == ["vLLM is left out: it has no environment yet (`make vllm`)"]


@pytest.mark.slow
def test_our_engine_in_its_process(toy_bench):
    result = run(toy_bench, ["servelab"], [Load(2, 40)], decode_steps=3)
    assert result.find("decode", system="servelab").median > 0
    assert result.settings["model"] == "toy"
    assert SimpleNamespace(**result.settings).decode_steps == 3
