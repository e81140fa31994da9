"""`Speculator`: the engine's side of speculation. Without a configuration it drafts nothing and costs nothing."""

from collections.abc import Sequence

from torch import Tensor

from servelab.cache import KVCacheManager
from servelab.engine.recorder import CacheManager
from servelab.engine.request import Request
from servelab.engine.sampler import Choice
from servelab.engine.scheduler import Plan, Row
from servelab.model import Model
from servelab.speculative import Draft, DraftRow, ObservedRow, Speculation, SpeculationMetrics, make_proposer

NO_DRAFT = Draft([])


class Speculator:
    """Asks the proposer for drafts, and tells it what became of them and of the requests.

    metrics: what drafting brought, over all requests.
    """

    cache: CacheManager

    def __init__(self, config: Speculation | None, model: Model) -> None:
        self.proposer = None if config is None else make_proposer(config, model)
        self.metrics = SpeculationMetrics()
        self._drafts: dict[str, Draft] = {}  # those whose outcome is not known yet

    @property
    def max_drafts(self) -> int:
        """Draft tokens of one request and step at most."""
        return 0 if self.proposer is None else self.proposer.k

    def block_bytes(self, block_size: int) -> int:
        """Bytes that the draft keeps beside each block of the target's cache."""
        return 0 if self.proposer is None else self.proposer.bytes_per_block(block_size)

    def attach(self, cache: CacheManager) -> None:
        """Lay the draft's own keys and values, if it has any, beside those of the target, under the same tables."""
        self.cache = cache
        if self.proposer is not None:
            self.proposer.attach(cache.num_slots // cache.block_size, cache.block_size)

    def prepare(self, plan: Plan) -> None:
        """Follow the scheduler: who starts, and which blocks were copied."""
        if self.proposer is not None:
            for request in plan.admitted:
                self._drafts.pop(request.sample_id, None)
                self.proposer.begin(request.sample_id, request.num_computed_tokens)
            if plan.copies:
                self.proposer.copy_blocks(plan.copies)

    def propose(self, rows: Sequence[Row]) -> list[Draft]:
        """A draft for each row; none for a prompt, and where nothing comes to mind.

        A step that was interrupted after its drafts is repeated with the same ones: a draft is made once a token.
        """
        wanted = [row for row in rows if row.max_drafts and row.request.sample_id not in self._drafts]
        if self.proposer is not None and wanted:
            proposed = self.proposer.propose([self._draft_row(row) for row in wanted])
            self._drafts |= {row.request.sample_id: draft for row, draft in zip(wanted, proposed, strict=True)}
        return [_cut(self._drafts.get(row.request.sample_id, NO_DRAFT), row.max_drafts) for row in rows]

    def observe(self, rows: Sequence[Row], drafts: Sequence[Draft], choices: Sequence[Choice], hidden: Tensor) -> None:
        """Tell the proposer which tokens the target has computed that stand. hidden: [T, E] of the pass."""
        if self.proposer is None:
            return
        chosen = {choice.request.sample_id: choice.verification for choice in choices}
        observed, stop = [], 0
        for row, draft in zip(rows, drafts, strict=True):
            request, verification = row.request, chosen.get(row.request.sample_id)
            accepted = verification.token_ids[: verification.num_accepted] if verification else []
            start, stop = stop, stop + row.num_tokens + len(draft.token_ids)
            num_tokens = row.num_tokens + len(accepted)
            observed.append(
                ObservedRow(
                    request_id=request.sample_id,
                    token_ids=request.token_ids + accepted if accepted else request.token_ids,
                    start=request.num_computed_tokens,
                    stop=request.num_computed_tokens + num_tokens,
                    hidden=hidden[start : start + num_tokens],
                    block_table=self._table(request),
                )
            )
        self.proposer.observe(observed)
        for row in rows:
            self._drafts.pop(row.request.sample_id, None)

    def record(self, request: Request, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        """Count a decoding row of one request."""
        if self.proposer is None:
            return
        for metrics in (self.metrics, request.metrics.speculation):
            metrics.record(num_drafted, num_accepted, num_emitted)

    def num_computed_tokens(self, request: Request) -> int:
        """Leading tokens that are computed by all: only blocks within them may be found by others."""
        if self.proposer is None:
            return request.num_computed_tokens
        return min(request.num_computed_tokens, self.proposer.num_computed(request.sample_id))

    def fork(self, parent: Request, child: Request) -> None:
        if self.proposer is not None:
            self.proposer.fork(parent.sample_id, child.sample_id)

    def forget(self, request: Request) -> None:
        if self.proposer is not None:
            self._drafts.pop(request.sample_id, None)
            self.proposer.forget(request.sample_id)

    def _draft_row(self, row: Row) -> DraftRow:
        request = row.request
        return DraftRow(
            request_id=request.sample_id,
            token_ids=request.token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            max_drafts=row.max_drafts,
            block_table=self._table(request),
            params=request.params,
            generator=request.generator,
        )

    def _table(self, request: Request) -> list[int]:
        """The blocks of a request in order; of a contiguous range its slots, each a block of one."""
        if isinstance(self.cache, KVCacheManager):
            return self.cache.block_table(request.sample_id)
        start = self.cache.start(request.sample_id)
        return list(range(start, start + self.cache.num_slots_held(request.sample_id)))


def _cut(draft: Draft, max_drafts: int) -> Draft:
    """The first tokens of a draft, which are a draft too."""
    if len(draft.token_ids) <= max_drafts:
        return draft
    return Draft(draft.token_ids[:max_drafts], None if draft.probs is None else draft.probs[:max_drafts])
