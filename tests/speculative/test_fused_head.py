"""The head's one compiled pass computes what its operators do, bit for bit, and only where it may."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from servelab.model import Model, ModelConfig, expand_kv_heads, random_model
from servelab.ops import Arena, CachedAttention, HeadResult, backend
from servelab.speculative.draft_cache import DraftCache, Span, last_rows, positions
from servelab.speculative.fused_head import FusedHead
from servelab.speculative.head import initial_network, load_head, save_head, vocabulary_rows

VOCABULARY = torch.arange(1, 257, 3)
TABLES = [list(range(80)), list(range(80, 100)), list(range(100, 105)), list(range(105, 125))]
# Catching up with one token, many, several, and from the beginning; the first context is split into ranges.
SPANS = [Span(TABLES[0], 310, 311), Span(TABLES[1], 3, 75), Span(TABLES[2], 14, 18), Span(TABLES[3], 0, 5)]


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    if backend.cannot_compile() is not None:
        pytest.skip(f"no compiled kernels here: {backend.cannot_compile()}")
    monkeypatch.setattr(backend, "choice", "compiled")


class Pass:
    """A head, its cache filled with random numbers, and tokens to guess from."""

    def __init__(self, target: Model, tmp_path, spans=SPANS) -> None:
        network = initial_network(target, seed=2)
        path = tmp_path / "head.safetensors"
        save_head(path, network, VOCABULARY, target)
        self.target, self.head, self.spans = target, load_head(path, target), spans
        self.rows = vocabulary_rows(target, VOCABULARY)
        self.rows.pack(Arena(2 * self.rows.weight.numel()))
        self.cache = DraftCache(self.head.network.config, torch.float32, torch.device("cpu"))
        self.cache.attach(125, 4)
        generator = torch.Generator().manual_seed(0)
        self.filling = torch.randn(self.cache.storage._tensor.shape, generator=generator)
        self.hidden = torch.randn(len(positions(spans)), target.config.hidden_size, generator=generator)
        self.token_ids = [(11 * place + 5) % 257 for place in range(len(self.hidden))]
        self.cos, self.sin = self.head.network.rotary_tables(torch.arange(400))
        self.fused = FusedHead(self.head.network, self.rows)

    def attention(self) -> CachedAttention:
        self.cache.storage._tensor.copy_(self.filling)
        return self.cache.attention(self.spans)

    def in_one(self) -> HeadResult | None:
        with torch.no_grad():
            return self.fused.run(
                *(self.hidden, self.target.network.embedding, self.token_ids, positions(self.spans)),
                *(last_rows(self.spans), self.cos, self.sin, self.attention()),
            )

    def by_operators(self) -> tuple[Tensor, Tensor]:
        places = positions(self.spans)
        network = self.head.network
        with torch.no_grad():
            embeddings = self.target.network.embedding(torch.tensor(self.token_ids))
            guessed = network.guess(self.hidden, embeddings, self.cos[places], self.sin[places], self.attention())
            guessed = guessed[last_rows(self.spans)]
            return guessed, network.logits(guessed, self.rows)


def tied_target(target: Model, **changes: object) -> Model:
    config: ModelConfig = replace(target.config, tie_word_embeddings=True, max_context=512, **changes)
    return random_model(config, seed=5)


def in_bfloat16(target: Model) -> Model:
    """The target with weights that panels hold in 16 bit."""
    model = tied_target(target)
    rounded = model.network.head.dense_weight().bfloat16().float()
    model.network.head.form = "plain"
    model.network.head.weight = torch.nn.Parameter(rounded, requires_grad=False)
    model.network.head.pack()
    return model


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "normalised heads", "one KV head a query head"])
def test_equals_the_operators_bit_for_bit(target: Model, tmp_path, kind: str) -> None:
    model = in_bfloat16(target) if kind == "bfloat16" else tied_target(target)
    if kind == "normalised heads":
        model = tied_target(target, architecture="qwen3", qk_norm=True)
    if kind == "one KV head a query head":
        model = expand_kv_heads(model)
    run = Pass(model, tmp_path)
    result = run.in_one()
    assert result is not None
    written = run.cache.storage._tensor.clone()
    hidden, logits = run.by_operators()
    assert torch.equal(result.hidden, hidden)
    assert torch.equal(result.logits, logits)
    assert torch.equal(written, run.cache.storage._tensor)
    assert not torch.equal(written, run.filling)
    assert result.best == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(result.peaks), logits.softmax(-1).amax(-1))


def test_each_sequence_alone_gives_the_same(target: Model, tmp_path) -> None:
    model = tied_target(target)
    together = Pass(model, tmp_path).in_one()
    for place, span in enumerate(SPANS):
        run = Pass(model, tmp_path, [span])
        first = sum(other.num_tokens for other in SPANS[:place])
        whole = Pass(model, tmp_path)
        run.hidden = whole.hidden[first : first + span.num_tokens]
        run.token_ids = whole.token_ids[first : first + span.num_tokens]
        assert torch.equal(run.in_one().logits[0], together.logits[place])


def test_of_equal_logits_the_first_is_best_and_a_row_without_a_highest_has_no_probability(target, tmp_path) -> None:
    run = Pass(tied_target(target), tmp_path)
    for value, expected in ((0.0, 1 / len(VOCABULARY)), (math.nan, math.nan), (math.inf, math.nan)):
        run.head.network.norm.weight.fill_(value)
        result = run.in_one()
        assert len(result.peaks) == len(SPANS)
        assert all(peak == pytest.approx(expected, nan_ok=True) for peak in result.peaks)
        if value == 0.0:
            assert result.best == [0] * len(SPANS)
    run.head.network.norm.weight.fill_(1.0)
    run.hidden[75] = math.nan  # of the third sequence
    assert [math.isnan(peak) for peak in run.in_one().peaks] == [False, False, True, False]


def test_it_follows_the_embedding(target: Model, tmp_path) -> None:
    run = Pass(tied_target(target), tmp_path)
    before = run.in_one()
    run.target = tied_target(target, rms_norm_eps=1e-4)  # other panels, the same numbers
    assert torch.equal(run.in_one().logits, before.logits)
    head = run.target.network.head
    head.weight = torch.nn.Parameter(head.weight * 2, requires_grad=False)
    assert not torch.equal(run.in_one().logits, before.logits)


def test_only_where_it_may(target: Model, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tied_target(target)
    run = Pass(model, tmp_path)
    assert run.in_one() is not None
    arguments = [run.hidden, model.network.embedding, run.token_ids, positions(SPANS), last_rows(SPANS)]
    with torch.enable_grad():
        assert run.fused.run(*arguments, run.cos, run.sin, run.attention()) is None
    naive = CachedAttention(run.attention().compiled.batch, run.cache.storage, "naive")
    with torch.no_grad():
        assert run.fused.run(*arguments, run.cos, run.sin, naive) is None
    assert Pass(random_model(replace(model.config, tie_word_embeddings=False)), tmp_path).in_one() is None
    monkeypatch.setattr(backend, "choice", "plain")
    assert Pass(tied_target(target), tmp_path).in_one() is None


def test_a_position_beyond_the_tables_is_refused(target: Model, tmp_path) -> None:
    run = Pass(tied_target(target), tmp_path)
    run.cos, run.sin = run.cos[:311], run.sin[:311]
    assert run.in_one() is not None
    run.cos, run.sin = run.cos[:310], run.sin[:310]
    with pytest.raises(ValueError, match=r"expected positions in 0\.\.309, got 310"):
        run.in_one()
