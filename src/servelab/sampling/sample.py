"""From logits to the next token: the most likely one, or one drawn at a temperature."""

from collections.abc import Sequence

import torch
from torch import Tensor

from servelab.sampling.params import SamplingParams


def sample(logits: Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]) -> list[int]:
    """Choose one token for each row.

    logits: [N, V], -inf where a token is not allowed; params, generators: one for each row, generators on the
    device of the logits. Each row draws from its own generator and sees no other row, so its token does not
    depend on what it is batched with. Among equal greedy logits the lowest id wins.

    Raises ValueError when a row has no finite logit (NaN, +inf, or nothing allowed), before any draw.
    """
    if logits.dim() != 2 or not logits.shape[1] or not logits.shape[0] == len(params) == len(generators):
        raise ValueError(
            f"expected logits [N, V], V >= 1, with N params and N generators, got logits {list(logits.shape)}, "
            f"{len(params)} params and {len(generators)} generators"
        )
    if not logits.shape[0]:
        return []
    highest = logits.amax(dim=-1)
    if not torch.isfinite(highest).all():
        raise ValueError(f"expected a finite highest logit in every row, got {highest.tolist()}")
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, (row_params, generator) in enumerate(zip(params, generators, strict=True)):
        if row_params.temperature > 0:
            probabilities = probabilities_at(logits[row], row_params.temperature)
            tokens[row] = int(torch.multinomial(probabilities, 1, generator=generator))
    return tokens


def probabilities_at(logits: Tensor, temperature: float) -> Tensor:
    """``softmax(logits / temperature)`` over the last dimension, float64 [..., V]. temperature > 0."""
    # The highest becomes 0 before the division, so that a tiny temperature gives exp(-inf) = 0 and never inf - inf;
    # in float64, because 1e-45 is not a normal float32.
    centred = logits.double() - logits.amax(dim=-1, keepdim=True).double()
    return torch.softmax(centred / temperature, dim=-1)


def make_generator(seed: int | None, device: torch.device | str) -> torch.Generator:
    """A generator of one request's own. Without a seed it starts from the system's entropy."""
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
