import pytest
import torch

from servelab.costs import MODEL_SPECS
from servelab.model import load_model, prepare_model
from servelab.ops import PackedCausalAttention

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "1, 2, 3, 4,",
    "Once upon a time, in a village by the sea",
]


def greedy(model, ids, count):
    for _ in range(count):
        ids = [*ids, int(model.logits(ids)[-1].argmax())]
    return ids


def test_logits_of_smollm2_equal_transformers(smollm2):
    """Within float32 rounding, and the same highest token everywhere."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(prepare_model(progress=False), dtype=torch.float32)
    for prompt in PROMPTS:
        ids = smollm2.tokenizer.encode(prompt)
        with torch.no_grad():
            expected = theirs.eval()(torch.tensor([ids])).logits[0]
        ours = smollm2.logits(ids)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-3)
        assert torch.equal(ours.argmax(-1), expected.argmax(-1))


def test_smollm2_answers(smollm2):
    tokenizer = smollm2.tokenizer
    prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}]))
    answer = greedy(smollm2, prompt, 8)[len(prompt) :]
    assert tokenizer.decode(answer) == "The capital of France is Paris."
    assert answer[-1] in tokenizer.eos_token_ids


def test_smollm2_is_what_the_course_says(smollm2):
    spec, known = smollm2.spec, MODEL_SPECS["SmolLM2-135M"]
    shapes = ("num_layers", "hidden_size", "num_query_heads", "num_kv_heads", "head_dim", "vocab_size", "max_context")
    for name in (*shapes, "num_parameters", "intermediate_size", "tied_embeddings", "kv_elements_per_token"):
        assert getattr(spec, name) == getattr(known, name), name
    assert smollm2.kv_bytes_per_token == 2 * 23_040  # float32: twice the 16-bit bytes


@pytest.mark.parametrize("others", [1, 3, 7])
def test_greedy_tokens_do_not_depend_on_the_batch(toy_model, others):
    """[vllm#5898]"""
    rows = [toy_model.tokenizer.encode(f"{'sequence' * (n % 3)} {n}") for n in range(others + 1)]
    alone = [toy_model.logits(row) for row in rows]
    ids = [token for row in rows for token in row]
    positions = [place for row in rows for place in range(len(row))]
    together = toy_model.forward(ids, positions, PackedCausalAttention([len(row) for row in rows]))
    assert torch.equal(together.argmax(-1), torch.cat(alone).argmax(-1))


@pytest.mark.parametrize(
    ("token_ids", "positions", "message"),
    [
        ([], [], r"with T >= 1, got \(0,\) and \(0,\)"),
        ([1, 2], [0], r"got \(2,\) and \(1,\)"),
        ([257], [0], r"every token id in 0\.\.256, got 257"),
        ([-1], [0], r"every token id in 0\.\.256, got -1"),
        ([1], [512], r"every position in 0\.\.511, got 512"),
    ],
)
def test_bad_input_is_refused(toy_model, token_ids, positions, message):
    with pytest.raises(ValueError, match=message):
        toy_model.forward(token_ids, positions, PackedCausalAttention([max(1, len(token_ids))]))


def test_hidden_then_project_is_forward(toy_model):
    ids = toy_model.tokenizer.encode("two steps")
    attention = PackedCausalAttention([len(ids)])
    hidden = toy_model.hidden(ids, range(len(ids)), attention)
    assert hidden.shape == (len(ids), toy_model.config.hidden_size)
    assert torch.equal(toy_model.project(hidden[[4, 1]]), toy_model.forward(ids, range(len(ids)), attention, [4, 1]))
    assert toy_model.project(hidden[:0]).shape == (0, toy_model.config.vocab_size)
    assert not toy_model.project(hidden).requires_grad


@pytest.mark.parametrize("shape", [(32,), (2, 31), (1, 2, 32)])
def test_what_are_no_hidden_states_is_refused(toy_model, shape):
    with pytest.raises(ValueError, match=r"expected hidden states \[N, 32\], got"):
        toy_model.project(torch.zeros(shape))


def test_logits_of_nothing_are_refused(toy_model):
    with pytest.raises(ValueError, match="at least 1, got"):
        toy_model.logits([])


@pytest.mark.parametrize("name", ["llama", "llama tied"])
def test_the_bytes_of_the_weights_are_those_that_a_step_reads(hf_folder, name):
    """An embedding table of its own is looked up, not read; a tied one is the output projection too."""
    model = load_model(hf_folder(name)[0], dtype=torch.float32, device="cpu")
    held = {weight.data_ptr(): weight.nbytes for weight in model.network.parameters()}
    if name == "llama":
        del held[model.network.get_parameter("embedding.weight").data_ptr()]
    assert model.weight_bytes == sum(held.values())


def test_properties_follow_the_weights(hf_folder):
    model = load_model(hf_folder("qwen2")[0], dtype=torch.bfloat16, device="cpu")
    assert (model.dtype, model.device.type) == (torch.bfloat16, "cpu")
    assert model.num_parameters == sum(parameter.numel() for parameter in model.network.parameters())
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 12 * 2


@pytest.mark.parametrize("token_ids", [None, 5, [], [1.5], ["a"], [True], [[1]], [1, None], [10**30]])
def test_what_are_no_token_ids_is_refused(toy_model, token_ids):
    with pytest.raises(ValueError, match=r"expected token_ids"):
        toy_model.logits(token_ids)
