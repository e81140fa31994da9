"""Engines over the toy model whose every step is checked: blocks, trace, and no stray read of an unused slot."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from servelab.cache import ContiguousCacheManager, KVCacheManager, KVStorage
from servelab.engine import Engine, EngineConfig, RequestOutput
from servelab.engine.request import sample_id
from servelab.model import ByteTokenizer, Model, skip_layers
from servelab.model import toy_model as make_toy_model
from servelab.model.network import Network
from servelab.speculative import Draft, DraftHead, DraftModel, NGram, Speculation
from servelab.speculative.head import initial_network, save_head


@pytest.fixture
def make_engine(toy_model) -> Callable[..., Engine]:
    """An engine of 64 blocks of 4 slots. Unused slots hold NaN, so a stray read shows in the output."""

    def make(model: Model = toy_model, **config) -> Engine:
        if "kv_cache_bytes" not in config:
            config = {"num_blocks": 64} | config
        engine = Engine(model, EngineConfig(**{"block_size": 4} | config))
        poison(engine.storage)
        return engine

    return make


@pytest.fixture
def plain_model(monkeypatch) -> Model:
    """A toy model whose weights may be changed: they are not packed."""
    monkeypatch.setattr(Network, "pack", lambda network: None)
    return make_toy_model()


class StartingTokenizer(ByteTokenizer):
    """Begins each text with a token of its own, as those of many models do."""

    def encode(self, text: str) -> list[int]:
        return [256, *super().encode(text)]


@pytest.fixture
def starting_model(toy_model) -> Model:
    return Model("starting", toy_model.config, toy_model.network, StartingTokenizer())


def poison(storage: KVStorage) -> None:
    """Fill every slot with NaN, which may not be read: as a number or, where numbers are int8, as a scale."""
    for layer in range(storage.num_layers):
        scales = (storage.key_scales(layer), storage.value_scales(layer))
        stored = (storage.keys(layer), storage.values(layer))
        for tensor in scales if storage.format == "int8" else stored:
            tensor.fill_(0x7F if storage.format.startswith("fp8") else math.nan)  # 0x7F is NaN in both FP8 formats


def check_step(engine: Engine) -> None:
    """The cache is whole, and replaying the trace gives its tables."""
    engine.cache.check_integrity()
    if not engine.trace.steps:
        return
    state = engine.trace.state_at(len(engine.trace.steps) - 1, "end")
    held = {}
    for record, request in zip(engine.trace.requests, state.requests, strict=True):
        if request.block_table:
            held[record.request_id] = request.block_table
        if request.reservation:
            held[record.request_id] = range(request.reservation[0], sum(request.reservation))
    if isinstance(engine.cache, KVCacheManager):
        assert list(state.free) == list(engine.cache.pool._free)
        assert set(state.findable) == {b for b in range(engine.trace.num_blocks) if engine.cache.pool.is_kept(b)}
        assert held == {name: engine.cache.block_table(name) for name in engine.cache.request_ids}
    if isinstance(engine.cache, ContiguousCacheManager):
        assert held == {name: engine.cache._range(name) for name in engine.cache.request_ids}
    for queue, replayed in ((engine.scheduler.running, state.running), (engine.scheduler.waiting, state.waiting)):
        assert [request.sample_id for request in queue] == [engine.trace.requests[i].request_id for i in replayed]
    for request in engine.scheduler.running:
        replayed_request = state.requests[engine.trace.index_of(request.sample_id)]
        assert replayed_request.num_computed_tokens == request.num_computed_tokens
        assert replayed_request.num_tokens == request.num_tokens


@pytest.fixture
def drain() -> Callable[..., dict[str, RequestOutput]]:
    """Step to the end with a check after each step; return the final outputs by request id, or id#index."""

    def run(engine: Engine, max_steps: int = 2000) -> dict[str, RequestOutput]:
        final: dict[str, RequestOutput] = {}
        last: dict[str, RequestOutput] = {}
        for _ in range(max_steps):
            for output in engine.step():
                name = sample_id(output.request_id, output.index)
                assert name not in final, "an output came after the final one"
                if name in last:
                    assert last[name].text + output.delta_text == output.text
                    assert last[name].token_ids + output.delta_token_ids == output.token_ids
                last[name] = output
                if output.finish_reason is not None:
                    final[name] = output
            check_step(engine)
            if not engine.has_unfinished():
                assert_empty(engine)
                return final
        raise AssertionError(f"not finished after {max_steps} steps")

    return run


def assert_empty(engine: Engine) -> None:
    """Nothing is held, queued or remembered."""
    engine.cache.check_integrity()
    assert engine.cache.request_ids == []
    total = engine.trace.num_blocks
    assert engine.cache.num_free == total
    assert (engine.scheduler.running, list(engine.scheduler.waiting), engine._requests) == ([], [], {})
    assert engine.speculator._drafts == {}
    proposer = engine.speculator.proposer
    for keeper in (proposer, getattr(proposer, "lengths", None)):
        kept = vars(keeper) if keeper is not None else {}
        assert not any(value for value in kept.values() if isinstance(value, dict)), kept


@pytest.fixture(name="assert_empty")
def assert_empty_fixture() -> Callable[[Engine], None]:
    return assert_empty


@pytest.fixture(scope="session")
def head_path(toy_model, tmp_path_factory) -> Path:
    """A draft head that nobody trained: it drafts something, of every second token, and is right now and then."""
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    save_head(path, initial_network(toy_model), torch.arange(0, toy_model.config.vocab_size, 2), toy_model)
    return path


@pytest.fixture(scope="session")
def speculation(toy_model, head_path) -> Callable[..., Speculation | None]:
    """Who drafts, by name, with options."""

    def make(name: str, **options) -> Speculation | None:
        if name == "n-gram":
            return NGram(**options)
        if name == "draft model":
            return DraftModel(skip_layers(toy_model, [0]), **options)
        if name == "target as draft":
            return DraftModel(toy_model, **options)
        return {"none": None, "draft head": DraftHead(head_path, **options)}[name]

    return make


@pytest.fixture(scope="session")
def greedy(toy_model) -> Callable[[list[int], int], list[int]]:
    """The reference: no cache, no batch, no scheduler; every token computed again for every token."""
    known: dict[tuple[int, ...], list[int]] = {}

    def generate(prompt: list[int], num_tokens: int) -> list[int]:
        output = known.setdefault(tuple(prompt), [])
        while len(output) < num_tokens:
            output.append(int(toy_model.logits(prompt + output)[-1].argmax()))
        return output[:num_tokens]

    return generate


class Script:
    """Drafts what it was told to, for the tokens so far; writes down what it is told."""

    k = 8

    def __init__(self, continuation, probs=None):
        self.continuation, self.probs = continuation, probs
        self.calls, self.asked, self.computed = [], [], {}

    def bytes_per_block(self, block_size):
        return 0

    def attach(self, num_blocks, block_size):
        self.calls.append(("attach", num_blocks, block_size))

    def begin(self, request_id, num_cached):
        self.calls.append(("begin", request_id, num_cached))
        self.computed[request_id] = num_cached

    def propose(self, rows):
        self.asked += [(row.request_id, len(row.token_ids), row.max_drafts, len(row.block_table)) for row in rows]
        drafts = [self.continuation(list(row.token_ids), row.num_prompt_tokens)[: row.max_drafts] for row in rows]
        return [Draft(draft, None if self.probs is None else self.probs[: len(draft)]) for draft in drafts]

    def observe(self, rows):
        for row in rows:
            assert row.hidden.shape[0] == row.stop - row.start
            assert len(row.token_ids) >= row.stop
            assert self.computed[row.request_id] == row.start
            self.computed[row.request_id] = row.stop

    def num_computed(self, request_id):
        return self.computed[request_id]

    def copy_blocks(self, pairs):
        self.calls.append(("copy", list(pairs)))

    def fork(self, parent_id, child_id):
        self.calls.append(("fork", parent_id, child_id))
        self.computed[child_id] = self.computed[parent_id]

    def forget(self, request_id):
        self.calls.append(("forget", request_id))
        self.computed.pop(request_id, None)


@pytest.fixture
def make_scripted(make_engine, monkeypatch, greedy):
    """An engine whose draft is right, as far as `num_right` tokens, and wrong behind them."""

    def make(num_right=8, k=8, **config):
        def continuation(tokens, num_prompt):
            rest = greedy(tokens[:num_prompt], len(tokens) - num_prompt + 8)[len(tokens) - num_prompt :]
            return rest[:num_right] + [(token + 1) % 256 for token in rest[num_right:]]

        script = Script(continuation)
        script.k = k
        monkeypatch.setattr("servelab.engine.speculator.make_proposer", lambda *_: script)
        return make_engine(speculative=NGram(), **config), script

    return make
