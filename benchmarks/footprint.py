"""Serve some requests and print what this process holds, as JSON in bytes: `python -m benchmarks.footprint`.

python -m benchmarks.footprint MODEL THREADS REQUESTS CONTEXT
"""

import json
import sys
from pathlib import Path

import psutil
import torch

from benchmarks.bench import load, prompts
from servelab.engine import Engine, EngineConfig
from servelab.model import Model
from servelab.sampling import SamplingParams

OUTPUT_TOKENS = 32


def footprint(model: Model, num_requests: int, context: int) -> dict[str, int]:
    """Resident bytes after loading and, at most, while serving; bytes of the weights and of the pool."""
    loaded = psutil.Process().memory_info().rss
    num_tokens = context + OUTPUT_TOKENS
    config = EngineConfig(num_blocks=num_requests * -(-num_tokens // 16), max_num_seqs=num_requests)
    engine = Engine(model, config)
    asked = prompts(model, num_requests, context)
    reset_peak()
    engine.generate(asked, SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True))
    return {
        "after loading": loaded,
        "peak while serving": peak(),
        "weights": held_weights(model),
        "KV pool": engine.storage.memory(),
    }


def held_weights(model: Model) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    tensors = [*model.network.parameters(), *model.network.buffers()]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def reset_peak() -> None:
    """Let the kernel's peak of resident memory begin anew, where it can (Linux)."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def peak() -> int:
    """Resident bytes at most since `reset_peak`; those of now where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    # Where coverage is installed, as beside the tests, numba imports it: 3 MB. A learner's environment has none.
    sys.modules["coverage"] = None  # type: ignore[assignment]
    name, threads, num_requests, context = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    print(json.dumps(footprint(load(name), num_requests, context)))
