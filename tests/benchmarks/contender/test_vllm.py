"""The driver of vLLM: over a fake of its interface, and, where its environment is made, over the real one."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.contender import process as conductor
from benchmarks.contender.process import contenders
from benchmarks.contender.protocol import Setup, Task
from benchmarks.contender.vllm import VLLM, in_process

SETUP = Setup("folder", "float32", threads=1, max_num_seqs=4, max_model_len=64, token_budget=32)


class FakeEngine:
    """One step prefills one request and lets the others decode; tokens count up."""

    def __init__(self):
        self.waiting, self.running = [], {}

    def add_request(self, request_id, prompt, params):
        assert params.ignore_eos
        assert params.temperature == 0
        assert params.max_tokens == 64 - len(prompt["prompt_token_ids"])
        self.waiting.append(request_id)

    def step(self):
        for tokens in self.running.values():
            tokens.append(len(tokens))
        if self.waiting:
            self.running[self.waiting.pop(0)] = [0]
        return [
            SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=tuple(tokens))])
            for name, tokens in self.running.items()
        ]

    def abort_request(self, ids):
        for name in ids:
            del self.running[name]

    def has_unfinished_requests(self):
        return bool(self.running or self.waiting)


@pytest.fixture
def fake_vllm(monkeypatch):
    made = []

    def make_llm(model, **options):
        made.append({"model": model, **options})
        return SimpleNamespace(llm_engine=FakeEngine())

    module, version = ModuleType("vllm"), ModuleType("vllm.version")
    module.LLM, module.SamplingParams, version.__version__ = make_llm, SimpleNamespace, "0.0"
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.version", version)
    return made


def test_it_is_stepped_in_process_without_prefix_caching(fake_vllm):
    contender = VLLM(SETUP)
    (options,) = fake_vllm
    assert options["enable_prefix_caching"] is False
    assert (options["model"], options["dtype"], options["max_num_batched_tokens"]) == ("folder", "float32", 32)
    assert contender.versions["vllm"] == "0.0"
    for _ in range(2):
        timing = contender.run(Task([[5] * 10] * 3, decode_steps=4))
        assert len(timing.step_s) == 4
        assert timing.token_ids == [list(range(7)), list(range(6)), list(range(5))]
        assert not contender.engine.has_unfinished_requests()


def test_its_process_runs_in_process_with_a_thread_a_core():
    variables = in_process(threads=3)
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["KMP_AFFINITY"].endswith("proclist=[0,1,2]")


def test_its_variables_join_those_of_every_vllm(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setattr(conductor, "VLLM_ENVIRONMENT", tmp_path)
    (process,) = contenders(SETUP, ["vLLM"])
    assert process.variables["HF_HUB_OFFLINE"] == "1"
    assert process.variables["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert process.variables["OMP_NUM_THREADS"] == "1"


@pytest.mark.slow
@pytest.mark.skipif(not conductor.VLLM_ENVIRONMENT.exists(), reason="vLLM has no environment here: make vllm")
def test_real_vllm_writes_the_tokens_that_our_engine_writes(smollm2):
    from servelab.engine import Engine, EngineConfig
    from servelab.model import prepare_model
    from servelab.sampling import SamplingParams

    prompt = smollm2.tokenizer.encode("The three primary colours are")
    setup = Setup(str(prepare_model(progress=False)), "float32", 1, 2, 256, 256)
    (process,) = contenders(setup, ["vLLM"])
    with process:
        timing = process.run(Task([prompt, prompt], decode_steps=7))
    (output,) = Engine(smollm2, EngineConfig(num_blocks=8)).generate([prompt], SamplingParams(max_tokens=8))
    assert timing.token_ids == [output.token_ids] * 2
    assert len(timing.step_s) == 7
