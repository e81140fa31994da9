"""vLLM for CPU as a contender, in its own environment (`make vllm`) and in this process: nothing is sent over HTTP.

`.venv-vllm/bin/python -m benchmarks.contender.vllm`, driven over standard input. The settings here and in its
variables are the fastest of those that were tried: compiled, not eager; Intel's OpenMP, as vLLM's own guide asks for.
"""

import itertools
import os
from collections.abc import Mapping
from typing import Any

from benchmarks.contender.protocol import Setup, Task, Timing, serve, time_steps


def in_process(threads: int) -> dict[str, str]:
    """Variables that join `servelab.serving.vllm.environment` where vLLM runs in its caller's process.

    The KMP variables are those that vLLM's launcher of worker processes sets; in process, nobody else does.
    """
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(threads),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, range(threads)))}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


class VLLM:
    """One `LLM` for all tasks, with prefix caching off."""

    def __init__(self, setup: Setup) -> None:
        from vllm import LLM
        from vllm.version import __version__

        self.max_model_len = setup.max_model_len
        self.engine: Any = LLM(
            setup.model,
            dtype=setup.dtype,
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.token_budget,
            enable_prefix_caching=False,
        ).llm_engine
        import torch

        self.versions: Mapping[str, str] = {"vllm": __version__, "torch": torch.__version__}
        self.numbers = itertools.count()

    def run(self, task: Task) -> Timing:
        from vllm import SamplingParams

        ids = []
        for prompt in task.prompts:
            ids.append(str(next(self.numbers)))
            params = SamplingParams(
                temperature=0, max_tokens=self.max_model_len - len(prompt), ignore_eos=True, detokenize=False
            )
            self.engine.add_request(ids[-1], {"prompt_token_ids": list(prompt)}, params)
        try:
            return time_steps(self.step, task)
        finally:
            self.engine.abort_request(ids)
            while self.engine.has_unfinished_requests():
                self.engine.step()

    def step(self) -> dict[str, list[int]]:
        return {output.request_id: list(output.outputs[0].token_ids) for output in self.engine.step()}


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    serve(VLLM)
