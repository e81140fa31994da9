"""Language models: a readable network, weights from safetensors or GGUF, a tokenizer, a catalogue."""

from servelab.model.config import ModelConfig, UnsupportedModel
from servelab.model.model import Model
from servelab.model.network import Network
from servelab.model.random import random_model, toy_model
from servelab.model.tokenizer import ByteTokenizer, Tokenizer

__all__ = [
    "ByteTokenizer",
    "Model",
    "ModelConfig",
    "Network",
    "Tokenizer",
    "UnsupportedModel",
    "random_model",
    "toy_model",
]
