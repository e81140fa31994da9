"""Networks with random weights: for tests, and for examples small enough to do by hand."""

import math

import torch

from servelab.model.config import ModelConfig
from servelab.model.model import Model
from servelab.model.network import Network
from servelab.model.tokenizer import ByteTokenizer


def random_model(
    config: ModelConfig,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """A model of this shape with a byte tokenizer. The same seed gives the same weights on the same kind of device.

    Weights are scaled so that activations stay near 1 and the highest logit stands clear of the second.
    Raises ValueError when the vocabulary is smaller than the byte tokenizer's 257.
    """
    tokenizer = ByteTokenizer()
    if config.vocab_size < tokenizer.vocab_size:
        raise ValueError(f"expected a vocabulary of at least {tokenizer.vocab_size}, got {config.vocab_size}")
    network = Network(config)
    frequencies = network.frequencies  # float32, whatever the weights are
    network.to(device, dtype).eval().requires_grad_(False)
    network.frequencies = frequencies.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            parameter.normal_(0.0, 2.0 / math.sqrt(parameter.shape[1]), generator=generator)
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.1, generator=generator)
        else:
            parameter.normal_(1.0, 0.1, generator=generator)
    network.pack()
    return Model(f"random-{config.architecture}", config, network, tokenizer)


def toy_model(seed: int = 0, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Model:
    """A Llama of 2 layers with 4 query heads, 2 KV heads and a context of 512 tokens."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_context=512,
        tie_word_embeddings=True,
        eos_token_ids=(256,),
    )
    return random_model(config, seed, dtype=dtype, device=device)
