"""A target, a draft model and a draft head, small enough to run hundreds of times."""

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from proposer_bench import Bench

from servelab.model import Model, ModelConfig, random_model
from servelab.ops import PackedCausalAttention
from servelab.sampling import SamplingParams
from servelab.speculative.head import HeadNetwork, initial_network, save_head, vocabulary_rows


@pytest.fixture(scope="session")
def target() -> Model:
    """Three layers of width 32, a byte vocabulary, and end token 256."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_layers=3,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_context=256,
        eos_token_ids=(256,),
    )
    return random_model(config, seed=5)


@pytest.fixture(scope="session")
def near_model(target: Model) -> Model:
    """The target with noise on its weights: it agrees on some tokens."""
    near = random_model(target.config, seed=5)
    generator = torch.Generator().manual_seed(1)
    for parameter in near.network.parameters():
        parameter += 0.04 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return near


@pytest.fixture(scope="session")
def head_path(target: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of even tokens, trained for a moment on what the target writes: it is right now and then."""
    torch.set_num_threads(1)
    network = initial_network(target)
    vocabulary = torch.arange(0, 257, 2)
    train(network, vocabulary, target)
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    save_head(path, network, vocabulary, target)
    return path


def train(network: HeadNetwork, vocabulary: torch.Tensor, target: Model) -> None:
    """Learn to say what the target says next, on texts that it wrote."""
    texts = Bench(target, None, seed=1)
    for seed in range(8):
        draw = random.Random(seed)
        prompt = [draw.randrange(256) for _ in range(6)]
        texts.add(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    texts.run()
    lengths = [len(line.tokens) for line in texts.lines]
    tokens = torch.tensor([token for line in texts.lines for token in line.tokens])
    places = torch.cat([torch.arange(length) for length in lengths])
    hidden = target.hidden(tokens, places, PackedCausalAttention(lengths))
    before = hidden.roll(1, 0)
    before[places == 0] = 0
    wanted = target.project(hidden).argmax(-1)
    rows = vocabulary_rows(target, vocabulary)
    columns = torch.searchsorted(vocabulary, wanted).clamp(max=len(vocabulary) - 1)
    known = vocabulary[columns] == wanted
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(120):
        guessed = network(before, target.network.embedding(tokens), places, PackedCausalAttention(lengths))
        loss = torch.nn.functional.cross_entropy(network.logits(guessed, rows)[known], columns[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
