"""The compiled pass computes what the network does operator by operator, bit for bit, and only where it may."""

import copy

import pytest
import torch

from servelab.cache import KVStorage
from servelab.kernels import quantize_kv
from servelab.model import expand_kv_heads, fused, load_model, skip_layers
from servelab.ops import AttentionBatch, CachedAttention, PackedCausalAttention, backend

MIX = [(1, 30), (5, 5), (1, 300), (3, 11), (4, 270), (40, 70)]  # (query, context) of each sequence
SHORT_MIX = [(1, 30), (5, 5), (1, 200), (3, 11), (40, 70)]
MODELS = [
    "llama",
    "llama tied",
    "llama 3 rope",
    "llama with a head of its own size",
    "qwen2",
    "qwen3",
    "qwen3 with bias",
]


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    if backend.cannot_compile() is not None:
        pytest.skip(f"no compiled kernels here: {backend.cannot_compile()}")
    monkeypatch.setattr(backend, "choice", "compiled")


@pytest.fixture
def passes(monkeypatch):
    """Counts the compiled passes."""
    seen = []
    run = fused.run_layers
    monkeypatch.setattr(
        fused, "run_layers", lambda *arguments: seen.append(len(arguments[1].indices)) or run(*arguments)
    )
    return seen


class Step:
    """Sequences over a cache of random numbers, which a run leaves as it was but for the slots that it writes."""

    def __init__(self, model, lengths=MIX, format="auto", block_size=4, seed=0):
        config = model.config
        generator = torch.Generator().manual_seed(seed)
        blocks = [-(-context // block_size) for _, context in lengths]
        shape = (config.num_layers, sum(blocks), block_size, config.num_kv_heads, config.head_dim)
        self.storage = KVStorage(*shape, format=format)
        self.tables = [table.tolist() for table in torch.randperm(sum(blocks), generator=generator).split(blocks)]
        self.lengths, self.block_size, self.model = lengths, block_size, model
        for layer in range(config.num_layers):
            for tensor in (self.storage.keys(layer), self.storage.values(layer)):
                numbers = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(numbers if format == "auto" else quantize_kv(numbers, format)[0])
            if format == "int8":
                self.storage.key_scales(layer).fill_(0.02)
                self.storage.value_scales(layer).fill_(0.02)
        self.ids = [
            [(7 * place + row) % 250 + 1 for place in range(context)] for row, (_, context) in enumerate(lengths)
        ]

    def run(self, rows=None, algorithm="auto"):
        """The hidden states of these sequences (default: all)."""
        rows = range(len(self.lengths)) if rows is None else rows
        spans = [(row, range(self.lengths[row][1] - self.lengths[row][0], self.lengths[row][1])) for row in rows]
        size = self.block_size
        batch = AttentionBatch(
            [len(span) for _, span in spans],
            [span.stop for _, span in spans],
            [self.tables[row][place // size] * size + place % size for row, span in spans for place in span],
            [self.tables[row] for row, _ in spans],
            block_size=size,
        )
        ids = [self.ids[row][place] for row, span in spans for place in span]
        positions = [place for _, span in spans for place in span]
        return self.model.hidden(ids, positions, CachedAttention(batch, self.storage, algorithm))

    def operators(self, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(fused.FusedLayers, "run", lambda *arguments: None)
            return self.run()


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_operators_bit_for_bit(hf_folder, monkeypatch, passes, name):
    model = load_model(hf_folder(name)[0], dtype=torch.float32, device="cpu")
    step = Step(model, SHORT_MIX)
    expected = step.operators(monkeypatch)
    assert passes == []
    assert torch.equal(step.run(), expected)
    assert passes == [model.config.num_layers]


@pytest.mark.parametrize("queries", [191, 192, 193, 400])
def test_long_prompts_are_fed_forward_in_pieces(toy_model, monkeypatch, passes, queries):
    step = Step(toy_model, [(1, 30), (queries - 1, queries + 9)])
    expected = step.operators(monkeypatch)
    assert torch.equal(step.run(), expected)
    assert len(passes) == 1


@pytest.mark.parametrize("format", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_equals_the_operators_on_a_quantized_cache(toy_model, monkeypatch, passes, format):
    step = Step(toy_model, format=format)
    expected = step.operators(monkeypatch)
    assert torch.equal(step.run(), expected)
    assert len(passes) == 1


@pytest.mark.parametrize("make", [expand_kv_heads, lambda model: skip_layers(model, [1])], ids=["expanded", "skipped"])
def test_models_made_from_a_model_are_fused_too(toy_model, monkeypatch, passes, make):
    step = Step(make(toy_model))
    expected = step.operators(monkeypatch)
    assert torch.equal(step.run(), expected)
    assert passes == [step.model.config.num_layers]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_does_not_depend_on_who_is_beside_it_nor_on_the_threads(toy_model, threads):
    """Bit for bit, alone or in a batch, in any order [vllm#5898]."""
    torch.set_num_threads(threads)
    step = Step(toy_model)
    together = step.run().split([query for query, _ in MIX])
    torch.set_num_threads(1)
    for row in range(len(MIX)):
        assert torch.equal(step.run([row]), together[row])
    turned = step.run([5, 3, 1, 0, 2, 4]).split([MIX[row][0] for row in (5, 3, 1, 0, 2, 4)])
    assert all(torch.equal(turned[place], together[row]) for place, row in enumerate((5, 3, 1, 0, 2, 4)))


@pytest.mark.parametrize("format", ["auto", "int8"])
@pytest.mark.parametrize("chunk", [1, 2, 7, 32, 33, 100])
def test_a_prompt_in_chunks_equals_the_whole_bit_for_bit(toy_model, format, chunk):
    """Prefill, chunks, decodes and verifications of drafts are one computation; contexts cross a range of 256."""
    length = 290
    whole = Step(toy_model, [(length, length)], format)
    expected = whole.run()
    parts = Step(toy_model, [(length, length)], format)
    found = []
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        parts.lengths = [(stop - start, stop)]
        found.append(parts.run())
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize("algorithm", ["naive", "flash"])
def test_the_naive_algorithm_is_computed_operator_by_operator(toy_model, passes, algorithm):
    step = Step(toy_model)
    torch.testing.assert_close(step.run(algorithm=algorithm), step.run(), rtol=1e-4, atol=1e-4)
    assert len(passes) == (1 if algorithm == "naive" else 2)


@pytest.mark.parametrize("format", ["auto", "int8"])
def test_heads_taken_together_or_one_by_one_give_the_same_bits(toy_model, monkeypatch, format):
    """Only who computes what changes with how many there are."""
    step = Step(toy_model, format=format)
    found = []
    plan = pytest.importorskip("servelab.ops.compiled.plan")
    for bundles in (0, 10**9):
        monkeypatch.setattr(plan, "BUNDLES", bundles)
        found.append(step.run())
    assert torch.equal(*found)


def test_the_cache_may_be_another_one(toy_model):
    """Where its layers lie is looked up once a storage, and not kept for the next one."""
    first, second = Step(toy_model), Step(toy_model, seed=1)
    expected = second.run()
    first.run()
    assert torch.equal(second.run(), expected)
    first.storage, first.tables = second.storage, second.tables
    assert torch.equal(first.run(), expected)


def test_a_hook_that_comes_later_is_seen(toy_model, passes):
    model = copy.deepcopy(toy_model)
    step = Step(model)
    step.run()
    seen = []
    hook = model.network.layers[0].attention.qkv.register_forward_pre_hook(lambda *arguments: seen.append(1))
    step.run()
    assert len(seen) == 1
    hook.remove()
    step.run()
    assert passes == [2, 2]


def test_the_input_is_left_as_it_is(toy_model):
    step = Step(toy_model)
    first = step.run()
    assert torch.equal(step.run(), first)


def test_who_looks_inside_gets_the_operators(toy_model, passes):
    """A hook on a module, a gradient, attention without a cache or one's own: nothing may be skipped."""
    model = copy.deepcopy(toy_model)
    step = Step(model)
    expected, seen = step.run(), []
    hook = model.network.layers[1].feed_forward.register_forward_hook(lambda *arguments: seen.append(1))
    passes.clear()
    assert torch.equal(step.run(), expected)
    hook.remove()
    assert (len(seen), passes) == (1, [])
    model.logits([1, 2, 3])
    model.hidden([1, 2, 3], range(3), lambda layer, q, k, v: q)
    model.hidden([1, 2, 3], range(3), PackedCausalAttention([3]))
    assert passes == []
    assert torch.equal(step.run(), expected)
    assert passes == [2]


def test_changed_weights_are_seen(toy_model, passes):
    model = copy.deepcopy(toy_model)
    step = Step(model)
    before = step.run()
    model.network.layers[0].attention_norm.weight.mul_(2)  # in place
    in_place = step.run()
    assert not torch.equal(in_place, before)
    model.network.layers[0].attention_norm.weight = torch.nn.Parameter(
        model.network.layers[0].attention_norm.weight / 2, requires_grad=False
    )
    assert torch.equal(step.run(), before)
    model.network.layers[0].feed_forward, model.network.layers[1].feed_forward = (
        model.network.layers[1].feed_forward,
        model.network.layers[0].feed_forward,
    )
    assert not torch.equal(step.run(), before)
    assert passes == [2] * 4
    model.network.layers[1].attention.q_norm = copy.deepcopy(model.network.norm)  # of a kind it does not know
    model.network.to(torch.float64)
    assert not model.network.fused.is_packed()
