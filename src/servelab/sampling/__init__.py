"""How the next token is chosen: parameters and pure functions over logits."""

from servelab.ops import draw
from servelab.sampling.distribution import probabilities
from servelab.sampling.history import TokenHistory
from servelab.sampling.logprobs import Logprobs, token_logprobs
from servelab.sampling.params import SamplingParams
from servelab.sampling.processor import process_logits
from servelab.sampling.rejection import rejection_sample
from servelab.sampling.sample import make_generator, sample, uniform
from servelab.sampling.verify import Verification, verify

__all__ = [
    "Logprobs",
    "SamplingParams",
    "TokenHistory",
    "Verification",
    "draw",
    "make_generator",
    "probabilities",
    "process_logits",
    "rejection_sample",
    "sample",
    "token_logprobs",
    "uniform",
    "verify",
]
