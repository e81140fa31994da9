"""N-gram lookup: a request that repeats its own text drafts itself, at no cost (prompt lookup decoding, Saxena 2023).

... the cat sat on the mat . Repeat : the cat | sat on the mat       <- drafted, because "the cat" stood before
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from servelab.speculative.adaptive import AdaptiveLengths
from servelab.speculative.config import NGram
from servelab.speculative.proposer import Draft, DraftRow, ObservedRow


@dataclass(slots=True)
class Index:
    """Where each n-gram of a request was last followed by something.

    follower: n-gram -> position of the token behind its latest occurrence. end: tokens that have been looked at as
    the follower of an n-gram.
    """

    follower: dict[Hashable, int] = field(default_factory=dict)
    end: int = 0


class NGramProposer:
    """Keeps an index for each request, and extends it by the tokens that are new: a lookup costs no search."""

    def __init__(self, config: NGram, token_cost: float) -> None:
        self.config = config
        self.lengths = AdaptiveLengths(config.k, config.adaptive, draft_cost=0.0, token_cost=token_cost)
        self._indices: dict[str, Index] = {}

    @property
    def k(self) -> int:
        return self.config.k

    def bytes_per_block(self, block_size: int) -> int:
        return 0

    def attach(self, num_blocks: int, block_size: int) -> None:
        pass

    def begin(self, request_id: str, num_cached: int) -> None:
        self._indices.setdefault(request_id, Index())

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        limits = self.lengths.limits(rows)
        drafts = [self._propose(row, limit) for row, limit in zip(rows, limits, strict=True)]
        self.lengths.proposed(rows, drafts)
        return drafts

    def _propose(self, row: DraftRow, limit: int) -> Draft:
        tokens = row.token_ids
        index = self._indices.setdefault(row.request_id, Index())
        self._extend(index, tokens)
        if limit < 1:
            return Draft([])
        for n in range(min(self.config.max_ngram, len(tokens)), self.config.min_ngram - 1, -1):
            position = index.follower.get(ngram(tokens, len(tokens), n))
            if position is not None:
                return Draft(continuation(tokens, position, limit))
        return Draft([])

    def _extend(self, index: Index, tokens: Sequence[int]) -> None:
        """Enter every token that is new, as the follower of the n-grams before it."""
        for position in range(max(index.end, self.config.min_ngram), len(tokens)):
            for n in range(self.config.min_ngram, min(self.config.max_ngram, position) + 1):
                index.follower[ngram(tokens, position, n)] = position
        index.end = len(tokens)

    def observe(self, rows: Sequence[ObservedRow]) -> None:
        self.lengths.observed(rows)

    def num_computed(self, request_id: str) -> int:
        """It has no KV that a block could lack: more than any request can have."""
        return 2**63

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        pass

    def fork(self, parent_id: str, child_id: str) -> None:
        index = self._indices.get(parent_id, Index())
        self._indices[child_id] = Index(dict(index.follower), index.end)
        self.lengths.fork(parent_id, child_id)

    def forget(self, request_id: str) -> None:
        self._indices.pop(request_id, None)
        self.lengths.forget(request_id)


def ngram(tokens: Sequence[int], stop: int, n: int) -> Hashable:
    """The n tokens before position `stop`, as a key."""
    return tokens[stop - 1] if n == 1 else tuple(tokens[stop - n : stop])


def continuation(tokens: Sequence[int], position: int, length: int) -> list[int]:
    """`length` tokens from `position` on; past the end it goes on with what it has copied, as a period repeats."""
    copied = list(tokens[position : position + length])
    while len(copied) < length:
        copied.append(copied[len(copied) - (len(tokens) - position)])
    return copied
