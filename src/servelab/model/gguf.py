"""Turn a GGUF file into a folder as Hugging Face writes it: safetensors, config.json, tokenizer.json.

GGUF (github.com/ggml-org/ggml, docs/gguf.md) keeps quantized tensors, and for the llama architecture the rows
of Q and K in another order: its rotary embedding turns the pairs (2d, 2d + 1), ours (d, d + D/2).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from torch import Tensor

NORMAL_TOKEN, CONTROL_TOKEN = 1, 3

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(path: Path, folder: Path, on_tensor: Callable[[], object] = lambda: None) -> None:
    """Write the model of the GGUF file `path` into `folder`, dequantized and rounded to bfloat16.

    on_tensor is called after each tensor. Raises ValueError for another architecture or a cut-off file.
    """
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise ValueError(f"expected a whole GGUF file, got {path.stat().st_size} bytes at {path}: {error}") from None
    values = {name: field.contents() for name, field in reader.fields.items()}
    if values["general.architecture"] != "llama":
        raise ValueError(f"expected a GGUF file of architecture 'llama', got {values['general.architecture']!r}")
    config = hf_config(values, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        name, array = hf_name(tensor.name), gguf.dequantize(tensor.data, tensor.tensor_type)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            array = unpermute(array, heads)
        tensors[name] = torch.tensor(array).to(torch.bfloat16)
        on_tensor()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # as the others: a classroom may share one cache
    write_json(folder / "config.json", config)
    write_tokenizer(values, folder)


def hf_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in OUTER:
        return OUTER[name]
    _, index, part, kind = name.split(".")
    return f"model.layers.{index}.{INNER[part]}.{kind}"


def unpermute(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Put the rows of Q or K [H * D, E] back from pairs (2d, 2d + 1) to halves (d, d + D/2), head by head."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hf_config(values: dict[str, Any], tied: bool) -> dict[str, Any]:
    """The values of `config.json` from GGUF's metadata."""
    heads = values["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": values["llama.vocab_size"],
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "head_dim": values["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": values["llama.context_length"],
        # GGUF keeps float32: 1e-5 comes back as 9.999999747e-06.
        "rms_norm_eps": float(f"{values['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
    }


def write_tokenizer(values: dict[str, Any], folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` from GGUF's vocabulary and merges.

    Raises ValueError for a tokenizer other than SmolLM's byte-level BPE: GGUF only names how text is split.
    """
    kind = (values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"expected the tokenizer ('gpt2', 'smollm'), got {kind}")
    tokens: list[str] = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # Every digit is a token of its own, then GPT-2's split into words.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = values["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": values["tokenizer.chat_template"],
        **{
            f"{ours}_token": tokens[values[f"tokenizer.ggml.{theirs}_token_id"]]
            for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
        },
    }
    write_json(folder / "tokenizer_config.json", settings)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
