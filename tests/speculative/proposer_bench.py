"""`Bench`: a target and a proposer driven by hand, without an engine: the order of calls is the protocol's."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from servelab.cache import KVStorage
from servelab.model import Model
from servelab.ops import AttentionBatch, CachedAttention
from servelab.sampling import SamplingParams, TokenHistory, make_generator, verify
from servelab.speculative import Draft, DraftRow, ObservedRow, Proposer, SpeculationMetrics

BLOCK_SIZE = 4
NUM_BLOCKS = 96
NO_DRAFT = Draft([])


@dataclass
class Line:
    """One request on the bench."""

    request_id: str
    tokens: list[int]
    params: SamplingParams
    table: list[int]
    num_prompt_tokens: int = 0
    num_computed: int = 0
    generator: torch.Generator = field(default_factory=torch.Generator)
    done: bool = False

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self.generator = make_generator(self.params.seed, "cpu")

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def end(self) -> int:
        return self.num_prompt_tokens + self.params.max_tokens


class Bench:
    """Steps of chunked prefill and verified decoding over scattered blocks; unused slots hold NaN."""

    def __init__(self, target: Model, proposer: Proposer | None, chunk: int = 512, seed: int = 0) -> None:
        self.target, self.proposer, self.chunk = target, proposer, chunk
        config = target.config
        shape = (config.num_layers, NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.storage = KVStorage(*shape)
        self.free = random.Random(seed).sample(range(NUM_BLOCKS), NUM_BLOCKS)
        self.lines: list[Line] = []
        self.metrics = SpeculationMetrics()
        self.drafts: list[Draft] = []
        self.touched: set[int] = set()
        if proposer is not None:
            proposer.attach(NUM_BLOCKS, BLOCK_SIZE)
        for storage in self.storages():
            for layer in range(storage.num_layers):
                storage.keys(layer).fill_(torch.nan)
                storage.values(layer).fill_(torch.nan)

    def storages(self) -> list[KVStorage]:
        cache = getattr(self.proposer, "cache", None)
        return [self.storage] if cache is None else [self.storage, cache.storage]

    def add(self, prompt: Sequence[int], params: SamplingParams, request_id: str | None = None) -> Line:
        num_blocks = -(-(len(prompt) + params.max_tokens) // BLOCK_SIZE)
        table, self.free = self.free[:num_blocks], self.free[num_blocks:]
        line = Line(request_id or str(len(self.lines)), list(prompt), params, table)
        self.lines.append(line)
        if self.proposer is not None:
            self.proposer.begin(line.request_id, 0)
        return line

    def run(self) -> list[list[int]]:
        while any(not line.done for line in self.lines):
            self.step()
        return [line.output for line in self.lines]

    def step(self) -> None:
        live = [line for line in self.lines if not line.done]
        decoding = [line for line in live if line.num_computed == len(line.tokens) - 1]
        drafts = {line.request_id: Draft([]) for line in live}
        if self.proposer is not None and decoding:
            rows = [self.draft_row(line) for line in decoding]
            proposed = self.proposer.propose(rows)
            assert len(proposed) == len(rows)
            for row, draft in zip(rows, proposed, strict=True):
                assert len(draft.token_ids) <= min(row.max_drafts, self.proposer.k)
                drafts[row.request_id] = draft
            self.drafts += proposed
        spans = [self.span(line, drafts[line.request_id]) for line in live]
        hidden = self.compute(live, drafts, spans)
        starts = [sum(stop - start for start, stop in spans[:place]) for place in range(len(spans))]
        ready = [place for place, line in enumerate(live) if spans[place][1] >= len(line.tokens)]
        rows_of = {place: starts[place] + len(live[place].tokens) - 1 - spans[place][0] for place in ready}
        if ready:
            self.emit([live[place] for place in ready], drafts, hidden, [rows_of[place] for place in ready])
        observed = []
        for place, line in enumerate(live):
            start = spans[place][0]
            stop = min(spans[place][1], len(line.tokens) - (place in rows_of))
            line.num_computed = stop
            states = hidden[starts[place] : starts[place] + stop - start]
            observed.append(ObservedRow(line.request_id, line.tokens, start, stop, states, line.table))
        if self.proposer is not None:
            self.proposer.observe(observed)
            for line in live:
                if line.done:
                    self.proposer.forget(line.request_id)
        hidden.fill_(torch.nan)  # its states are the target's to use again

    def draft_row(self, line: Line) -> DraftRow:
        max_drafts = line.end - len(line.tokens) - 1
        return DraftRow(
            line.request_id,
            line.tokens,
            line.num_prompt_tokens,
            max_drafts,
            line.table,
            line.params,
            line.generator,
        )

    def span(self, line: Line, draft: Draft) -> tuple[int, int]:
        start = line.num_computed
        return start, min(len(line.tokens) + len(draft.token_ids), start + max(self.chunk, 1 + len(draft.token_ids)))

    def compute(
        self, lines: Sequence[Line], drafts: dict[str, Draft], spans: Sequence[tuple[int, int]]
    ) -> torch.Tensor:
        tokens, places, slots = [], [], []
        for line, (start, stop) in zip(lines, spans, strict=True):
            tokens += (line.tokens + drafts[line.request_id].token_ids)[start:stop]
            places += range(start, stop)
            slots += [line.table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, stop)]
        self.touched |= set(places)
        batch = AttentionBatch(
            query_lengths=[stop - start for start, stop in spans],
            context_lengths=[stop for _, stop in spans],
            slot_mapping=slots,
            block_tables=[line.table for line in lines],
            block_size=BLOCK_SIZE,
        )
        return self.target.hidden(tokens, places, CachedAttention(batch, self.storage))

    def emit(self, lines: Sequence[Line], drafts: dict[str, Draft], hidden: torch.Tensor, first: Sequence[int]) -> None:
        own = [drafts[line.request_id] for line in lines]
        rows = [row + place for row, draft in zip(first, own, strict=True) for place in range(len(draft.token_ids) + 1)]
        verified = verify(
            self.target.project(hidden[rows]),
            [draft.token_ids for draft in own],
            [draft.probs for draft in own],
            [line.params for line in lines],
            [line.generator for line in lines],
            [TokenHistory(line.tokens[: line.num_prompt_tokens], line.output) for line in lines],
            self.target.tokenizer.eos_token_ids,
        )
        for line, draft, result in zip(lines, own, verified, strict=True):
            self.metrics.record(len(draft.token_ids), result.num_accepted)
            for token in result.token_ids:
                line.tokens.append(token)
                ends = token in self.target.tokenizer.eos_token_ids and not line.params.ignore_eos
                if ends or token in line.params.stop_token_ids or len(line.tokens) == line.end:
                    line.done = True
                    break

    def fork(self, parent: Line, params: SamplingParams, request_id: str) -> Line:
        """A child that shares the parent's full blocks and gets a copy of the one that both will write to."""
        child = self.add(parent.tokens, params, request_id)
        shared = parent.num_computed // BLOCK_SIZE
        child.table[:shared] = parent.table[:shared]
        pairs = [(parent.table[shared], child.table[shared])]
        self.proposer.forget(request_id)
        self.proposer.fork(parent.request_id, request_id)
        self.storage.copy_blocks(pairs)
        self.proposer.copy_blocks(pairs)
        child.num_computed = parent.num_computed
        return child
