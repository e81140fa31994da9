"""How the next token is chosen: parameters and pure functions over logits."""

from servelab.sampling.params import SamplingParams
from servelab.sampling.sample import make_generator, probabilities_at, sample

__all__ = ["SamplingParams", "make_generator", "probabilities_at", "sample"]
