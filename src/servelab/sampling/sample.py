"""`sample`: from logits to the next token, the most likely one or one that is drawn."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from servelab.ops import draw
from servelab.sampling.distribution import as_row, most_likely, shortlist
from servelab.sampling.history import TokenHistory
from servelab.sampling.params import SamplingParams
from servelab.sampling.processor import process_logits


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator],
    histories: Sequence[TokenHistory] | None = None,
    end_token_ids: Collection[int] = (),
) -> list[int]:
    """Choose one token for each row.

    logits: [N, V] float, -inf where a token is not allowed, not changed; params, generators, histories: one for each
    row, histories may be None while no row needs one; end_token_ids: see `process_logits`. Each row takes one uniform
    number of its own generator, none when it is greedy, and sees no other row: its token does not depend on what it
    is batched with. Among equal greedy logits the lowest id wins.

    Raises ValueError when a row has no finite highest logit (NaN, +inf, or nothing allowed), before any draw.
    """
    if len(generators) != len(params):
        raise ValueError(f"expected one generator for each of {len(params)} params, got {len(generators)}")
    logits = process_logits(logits.float(), params, histories, end_token_ids)
    tokens, tops = most_likely(logits, params)
    for row, (row_params, generator) in enumerate(zip(params, generators, strict=True)):
        if row_params.temperature > 0:
            tokens[row] = draw_token(logits[row], tops[row], row_params, generator)
    return tokens


def draw_token(row: Tensor, top: float, params: SamplingParams, generator: torch.Generator) -> int:
    """One draw for one row. row: processed logits [V]; top: the highest, finite; params: temperature above 0."""
    ids, weights = shortlist(as_row(row), top, params)
    place = int(draw(torch.from_numpy(weights)[None], uniform(generator, 1)))
    return place if ids is None else int(ids[place])


def uniform(generator: torch.Generator, n: int) -> Tensor:
    """`n` numbers in [0, 1), float64 [n], on the generator's device."""
    return torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64)


def make_generator(seed: int | None, device: torch.device | str, index: int = 0) -> torch.Generator:
    """A generator of one request's own. Without a seed it starts from the system's entropy.

    index: which of the request's `n` outputs it is for; each has draws of its own.
    """
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(_mix(seed, index))
    return generator


def _mix(seed: int, index: int) -> int:
    """Spread a seed over all 64 bits (the finaliser of SplitMix64, Steele et al. 2014).

    A CPU generator looks at the lowest 32 bits only, and seed 1's second output must not be seed 2's first.
    """
    mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31
