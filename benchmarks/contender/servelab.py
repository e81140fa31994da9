"""Our own engine as a contender. `python -m benchmarks.contender.servelab`, driven over standard input."""

from collections.abc import Mapping

import torch

import servelab
from benchmarks.contender.protocol import Setup, Task, Timing, serve, time_steps
from servelab.engine import Engine, EngineConfig
from servelab.model import load_model, toy_model
from servelab.sampling import SamplingParams

BLOCK_SIZE = 16


class Servelab:
    """One engine for all tasks, with prefix caching off: every prompt is computed."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        is_toy = setup.model == "toy"
        model = toy_model() if is_toy else load_model(setup.model, dtype=getattr(torch, setup.dtype), progress=False)
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=-(-setup.max_model_len // BLOCK_SIZE) * setup.max_num_seqs,
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.token_budget,
            prefix_caching=False,
        )
        self.engine = Engine(model, config)
        self.versions: Mapping[str, str] = {"servelab": servelab.__version__, "torch": torch.__version__}

    def run(self, task: Task) -> Timing:
        ids = []
        for prompt in task.prompts:
            params = SamplingParams(max_tokens=self.engine.max_model_len - len(prompt), ignore_eos=True)
            ids.append(self.engine.add_request(list(prompt), params))
        try:
            return time_steps(self.step, task)
        finally:
            for request_id in ids:
                self.engine.abort(request_id)
            self.engine.step()

    def step(self) -> dict[str, list[int]]:
        return {output.request_id: output.token_ids for output in self.engine.step()}


if __name__ == "__main__":
    serve(Servelab)
