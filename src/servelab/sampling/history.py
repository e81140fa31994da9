"""`TokenHistory`: the tokens so far, as far as the choice of the next one depends on them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenHistory:
    """Prompt tokens and output tokens of one request; the lists may be the request's own, nothing is copied."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]

    def after(self, token_ids: Sequence[int]) -> "TokenHistory":
        """The history once `token_ids` have been output too: what a position behind draft tokens sees."""
        return TokenHistory(self.prompt_token_ids, [*self.output_token_ids, *token_ids])
