"""From a configuration to the proposer that it asks for."""

from servelab.model import Model
from servelab.speculative.config import DraftHead, DraftModel, NGram, Speculation
from servelab.speculative.draft_head import DraftHeadProposer
from servelab.speculative.draft_model import DraftModelProposer
from servelab.speculative.ngram import NGramProposer
from servelab.speculative.proposer import Proposer

# What one more token adds to a step of one token, as a share of it.
CPU_TOKEN_COST, GPU_TOKEN_COST = 0.06, 0.005


def make_proposer(config: Speculation, target: Model) -> Proposer:
    """The proposer that `config` asks for, for this target; `attach` allocates its storage.

    Raises ValueError for another kind of configuration, or a draft model or head that does not fit the target.
    """
    token_cost = CPU_TOKEN_COST if target.device.type == "cpu" else GPU_TOKEN_COST
    match config:
        case NGram():
            return NGramProposer(config, token_cost)
        case DraftModel():
            return DraftModelProposer(config, target, token_cost)
        case DraftHead():
            return DraftHeadProposer(config, target, token_cost)
    raise ValueError(f"expected NGram(...), DraftModel(...) or DraftHead(...), got {config!r:.80}")
