"""Who proposes draft tokens, and how many; the target model decides which of them stand."""

from servelab.speculative.adaptive import AdaptiveLength
from servelab.speculative.config import DraftHead, DraftModel, NGram, Speculation
from servelab.speculative.metrics import SpeculationMetrics
from servelab.speculative.proposer import Draft, DraftRow, ObservedRow, Proposer
from servelab.speculative.selection import make_proposer

__all__ = [
    "AdaptiveLength",
    "Draft",
    "DraftHead",
    "DraftModel",
    "DraftRow",
    "NGram",
    "ObservedRow",
    "Proposer",
    "Speculation",
    "SpeculationMetrics",
    "make_proposer",
]
