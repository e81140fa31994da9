"""The engine on this GPU: the same greedy tokens as without Triton, and how many a second."""

import time

import torch

from benchmarks.kernel.check import Bench
from benchmarks.report import Measurement, Result, Target

REQUESTS = (1, 16, 64)


def run(bench: Bench) -> Result:
    """Raises ImportError where the course's packages are missing, AssertionError where tokens differ."""
    from servelab.engine import Engine, EngineConfig
    from servelab.model import ModelConfig, random_model, toy_model
    from servelab.ops import backend
    from servelab.sampling import SamplingParams

    prompts = [list(range(2, 2 + length)) for length in (37, 5, 90, 16)]
    params = SamplingParams(max_tokens=8 if bench.small else 48, ignore_eos=True)
    small = {"max_model_len": 160, "num_blocks": 64, "block_size": 16}
    tokens = {}
    for choice in ("plain", "triton"):
        backend.choice = choice
        engine = Engine(toy_model(device=bench.device), EngineConfig(**small))
        tokens[choice] = [output.token_ids for output in engine.generate(prompts, params)]
    backend.choice = "auto"
    assert tokens["plain"] == tokens["triton"], f"expected {tokens['plain']}, got {tokens['triton']}"
    same = Target("requests with the same tokens as without Triton", float(len(prompts)), ">=", float(len(prompts)), "")
    if bench.small:
        return Result((), (same,))

    # The shape of Llama 3.2 1B. How fast it is does not depend on what the weights are.
    shape = ModelConfig(
        architecture="llama",
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_query_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_context=8192,
        tie_word_embeddings=True,
        eos_token_ids=(128_001,),
    )
    model = random_model(shape, dtype=bench.dtype, device=bench.device)
    measurements = []
    for choice in ("plain", "triton"):
        backend.choice = choice
        for num_requests in REQUESTS:
            config = EngineConfig(max_num_seqs=num_requests, max_model_len=1280, max_num_batched_tokens=2048)
            engine = Engine(model, config)
            asked = [[3 + i] * 1024 for i in range(num_requests)]
            engine.generate(asked[:1], SamplingParams(max_tokens=4, ignore_eos=True))
            torch.cuda.synchronize()
            started = time.perf_counter()
            engine.generate(asked, SamplingParams(max_tokens=64, ignore_eos=True))
            torch.cuda.synchronize()
            rate = 64 * num_requests / (time.perf_counter() - started)
            case = {"requests": num_requests, "context": 1024, "kernels": choice, "model": "Llama 3.2 1B's shape"}
            measurements.append(Measurement("output tokens, prefill included", "tokens/s", (rate,), case))
    backend.choice = "auto"
    return Result(tuple(measurements), (same,))
