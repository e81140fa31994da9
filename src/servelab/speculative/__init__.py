"""Who proposes draft tokens, and how many; the target model decides which of them stand."""

from servelab.speculative.adaptive import AdaptiveLength
from servelab.speculative.config import DraftHead, DraftModel, NGram, Speculation
from servelab.speculative.metrics import SpeculationMetrics
from servelab.speculative.ngram import NGramProposer
from servelab.speculative.proposer import Draft, DraftRow, ObservedRow, Proposer

__all__ = [
    "AdaptiveLength",
    "Draft",
    "DraftHead",
    "DraftModel",
    "DraftRow",
    "NGram",
    "NGramProposer",
    "ObservedRow",
    "Proposer",
    "Speculation",
    "SpeculationMetrics",
]
