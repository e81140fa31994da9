"""Small random models in the form that transformers saves, every weight, norm and bias of them random."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from servelab.model.gguf import INNER, OUTER

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
    return Path(shutil.copytree(hf_folder("llama")[0], tmp_path / "llama"))


@pytest.fixture
def write_gguf():
    """``write_gguf(path, transformers model, architecture=..., pre=...)``."""
    return write_gguf_file


def permute(weight, num_heads):
    """How llama.cpp's converter stores Q and K (convert_hf_to_gguf.py, `permute`)."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf_file(path, theirs, architecture="llama", pre="smollm"):
    """A transformers Llama as GGUF, in float32."""
    config = theirs.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.head_dim)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "12", *(f"<{n}>" for n in range(258, 320))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 258 + [3] * 62)
    writer.add_token_merges(["a b", "1 2"])
    for kind, token in (("bos", 258), ("eos", 259), ("unk", 258), ("pad", 259)):
        getattr(writer, f"add_{kind}_token_id")(token)
    writer.add_chat_template("{{ messages[0].content }}")
    inner = {theirs_name: name for name, theirs_name in INNER.items()}
    outer = {theirs_name: name for name, theirs_name in OUTER.items()}
    for name, tensor in theirs.state_dict().items():
        array = tensor.numpy()
        if "q_proj" in name:
            array = permute(array, config.num_attention_heads)
        if "k_proj" in name:
            array = permute(array, config.num_key_value_heads)
        if name not in outer:
            _, _, index, part = name.removesuffix(".weight").split(".", 3)
            writer.add_tensor(f"blk.{index}.{inner[part]}.weight", np.ascontiguousarray(array))
        elif not (name == "lm_head.weight" and config.tie_word_embeddings):
            writer.add_tensor(outer[name], np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
