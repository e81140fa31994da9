"""Small random models in the form that transformers saves, every weight, norm and bias of them random."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SIZES = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 7,
    "bos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# name -> (transformers' prefix, options beyond SIZES)
MODELS = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with a head of its own size": ("Llama", {"head_dim": 20, "attention_bias": True, "mlp_bias": True}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE, "num_key_value_heads": 1}),
    "llama without grouped heads": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 0.01}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 with bias": ("Qwen3", {"head_dim": 32, "attention_bias": True}),
}


def write_byte_tokenizer(folder: Path) -> None:
    """A byte-level BPE without merges: every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def make_hf_model(name: str, seed: int = 0):
    """A transformers model in which no weight, norm or bias is at its neutral start."""
    import transformers

    prefix, options = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            center, spread = (0.0, 1.5 / parameter.shape[1] ** 0.5) if parameter.dim() == 2 else (0.5, 0.3)
            parameter.normal_(center, spread, generator=generator)
    return model


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory):
    """``hf_folder(name) -> (folder, transformers model)``, made once a session."""
    made = {}

    def make(name: str):
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            model = make_hf_model(name)
            model.save_pretrained(folder)
            write_byte_tokenizer(folder)
            made[name] = folder, model
        return made[name]

    return make


@pytest.fixture
def llama_copy(hf_folder, tmp_path):
    """A small Llama's folder of one's own, to break."""
    import shutil

    return Path(shutil.copytree(hf_folder("llama")[0], tmp_path / "llama"))
