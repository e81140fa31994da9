"""Language models: a readable network, weights from safetensors or GGUF, a tokenizer, a catalogue."""

from servelab.device import cache_folder
from servelab.model.catalog import ModelEntry, ModelUnavailable, list_models
from servelab.model.config import ModelConfig, UnsupportedModel
from servelab.model.load import load_model
from servelab.model.model import Model
from servelab.model.network import Network
from servelab.model.prepare import prepare_model
from servelab.model.random import random_model, toy_model
from servelab.model.tokenizer import ByteTokenizer, PretrainedTokenizer, Tokenizer
from servelab.model.variant import expand_kv_heads, skip_layers

__all__ = [
    "ByteTokenizer",
    "Model",
    "ModelConfig",
    "ModelEntry",
    "ModelUnavailable",
    "Network",
    "PretrainedTokenizer",
    "Tokenizer",
    "UnsupportedModel",
    "cache_folder",
    "expand_kv_heads",
    "list_models",
    "load_model",
    "prepare_model",
    "random_model",
    "skip_layers",
    "toy_model",
]
