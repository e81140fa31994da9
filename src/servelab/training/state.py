"""Where training stands, in one file that is replaced as a whole: an interrupted write leaves the one before."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from servelab.model.weights import open_safetensors
from servelab.speculative.head import HeadNetwork

MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # of AdamW, for each parameter


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What was measured on held-out text after so much training.

    minutes: of training, evaluation not counted. tokens: trained on, repeats counted. loss: running mean.
    acceptance: share accepted at draft position 1, 2, ... tokens_per_step: with drafts of that length throughout.
    """

    minutes: float
    step: int
    tokens: int
    loss: float
    acceptance: tuple[float, ...]
    tokens_per_step: float


@dataclass(slots=True)
class Progress:
    """epoch, batch: the next batch to train on. seconds: of training so far, over all runs."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    curve: list[CurvePoint] = field(default_factory=list)


def save_state(path: Path, network: HeadNetwork, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write weights, the optimizer's moments and the progress."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        tensors[f"network.{name}"] = parameter.detach()
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata={"progress": json.dumps(asdict(progress))})
    partial.replace(path)


def load_state(path: Path, network: HeadNetwork, optimizer: torch.optim.Optimizer) -> Progress:
    """Fill network and optimizer from the file and return the progress; without a file, a fresh one."""
    if not path.exists():
        return Progress()
    with open_safetensors(path) as file:
        values = json.loads(file.metadata()["progress"])
        names = set(file.keys())
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(file.get_tensor(f"network.{name}"))
                if f"step.{name}" in names:
                    optimizer.state[parameter] = {
                        moment: file.get_tensor(f"{moment}.{name}").clone() for moment in MOMENTS
                    }
    curve = [CurvePoint(**{**point, "acceptance": tuple(point["acceptance"])}) for point in values.pop("curve")]
    return Progress(**values, curve=curve)
