"""Training: the draft head, on text that its target writes."""

from servelab.training.card import Run
from servelab.training.pipeline import train_draft_head

__all__ = ["Run", "train_draft_head"]
