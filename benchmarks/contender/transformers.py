"""transformers as a contender: `generate` over one static batch, and its continuous batching.

`python -m benchmarks.contender.transformers static|continuous`, driven over standard input.
"""

import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, StoppingCriteria

from benchmarks.contender.protocol import Setup, Task, Timing, peak_bytes, serve

VERSIONS: Mapping[str, str] = {"transformers": transformers.__version__, "torch": torch.__version__}
PAGE_SIZE = 64  # of its cache; by default 256


def load(setup: Setup) -> Any:
    """The model in evaluation mode, its outputs never ended by a token."""
    torch.set_num_threads(setup.threads)
    if setup.model == "toy":
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 257}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    else:
        model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=getattr(torch, setup.dtype))
    return model.eval()


class Clock(StoppingCriteria):
    """Never stops anything; notes the time of each step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.marks.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Static:
    """`generate` with all prompts as one batch, which is all it can do: prompts of one length need no padding."""

    versions = VERSIONS

    def __init__(self, setup: Setup) -> None:
        self.model = load(setup)

    def run(self, task: Task) -> Timing:
        prompts = torch.tensor([list(prompt) for prompt in task.prompts])
        clock = Clock()
        begin = time.perf_counter()
        with torch.inference_mode():
            generated = self.model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                generation_config=GenerationConfig(
                    do_sample=False, max_new_tokens=task.decode_steps + 1, eos_token_id=None, pad_token_id=0
                ),
                stopping_criteria=[clock],
            )
        steps = [after - before for before, after in itertools.pairwise(clock.marks)]
        token_ids = generated[:, prompts.shape[1] :].tolist()
        return Timing(clock.marks[0] - begin, steps, token_ids, peak_bytes())


class Continuous:
    """Its continuous batching, with a paged cache and without sharing of prefixes. It runs in a thread of its own.

    Without flash attention each step reads the whole cache, whoever it belongs to: it gets one that just suffices.
    """

    versions = VERSIONS

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model = load(setup)

    def run(self, task: Task) -> Timing:
        # A request that was prefilled early decodes while others are prefilled: it needs that many tokens more.
        prompt_tokens = sum(len(prompt) for prompt in task.prompts)
        max_new_tokens = task.decode_steps + math.ceil(prompt_tokens / self.setup.token_budget) + 2
        manager = self.manager(len(task.prompts), max(map(len, task.prompts)) + max_new_tokens)
        manager.start()
        try:
            begin = time.perf_counter()
            ids = manager.add_requests(
                inputs=[list(prompt) for prompt in task.prompts], max_new_tokens=max_new_tokens, record_timestamps=True
            )
            outputs = finished(manager, ids)
        finally:
            manager.stop()
            manager.destroy()
        # All tokens of one step bear times within microseconds of each other: those of the last request mark it.
        marks = max((output.timestamps for output in outputs), key=lambda times: times[0])[: task.decode_steps + 1]
        steps = [after - before for before, after in itertools.pairwise(marks)]
        return Timing(marks[0] - begin, steps, [output.generated_tokens for output in outputs], peak_bytes())

    def manager(self, num_requests: int, num_tokens: int) -> Any:
        return self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=num_requests * math.ceil(num_tokens / PAGE_SIZE) + 1,
                max_batch_tokens=self.setup.token_budget,
                max_requests_per_batch=num_requests,
                allow_block_sharing=False,
            ),
        )


def finished(manager: Any, ids: Sequence[str]) -> list[Any]:
    """The outputs of these requests in their order, when all have ended."""
    outputs: dict[str, Any] = {}
    while len(outputs) < len(ids):
        output = manager.get_result(timeout=1)
        if output is None:
            if not manager.is_running():
                raise RuntimeError("its generation thread has ended")
        elif output.error is not None:
            raise RuntimeError(output.error)
        elif output.is_finished():
            outputs[output.request_id] = output
    return [outputs[request_id] for request_id in ids]


if __name__ == "__main__":
    serve({"static": Static, "continuous": Continuous}[sys.argv[1]])
