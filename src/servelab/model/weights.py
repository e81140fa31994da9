"""Read safetensors into a network: one file or shards, memory-mapped, converted as they are copied.

Nothing else is ever opened: a pickle could run code.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from servelab.model.config import ModelConfig
from servelab.model.network import Network
from servelab.ops import Arena, Linear, huge_empty

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Tensors that files may hold and the network computes itself, or shares.
COMPUTED = ("rotary_emb.inv_freq",)


def load_network(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Network:
    """Build the network of `config` with the weights in `folder`, as `dtype` on `device`, ready for inference.

    Raises ValueError that names the file or tensor when one is missing, cut off, of another shape or not expected.
    """
    with torch.device("meta"):
        network = Network(config)
    files = weight_files(folder)
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    targets = {source: (name, rows) for name in shapes for source, rows in sources(name, config, shapes[name][0])}
    missing = Counter(name for name, _ in targets.values())  # parameter -> how many of its tensors are to come
    weights: dict[str, Tensor] = {}
    arena = network.make_arena()
    for path in sorted(set(files.values())):
        with open_safetensors(path) as file:
            for source in file.keys():  # noqa: SIM118 - not a mapping
                if source not in targets:
                    check_expected(source, path, config)
                    continue
                name, rows = targets.pop(source)
                if name not in weights:
                    weights[name] = empty(shapes[name], dtype, device)
                copy_rows(weights[name][rows], file.get_tensor(source), source, path)
                missing[name] -= 1
                if not missing[name]:
                    place(network, name, weights.pop(name), arena)
    if targets:
        raise ValueError(f"expected the tensor {min(targets)} in {folder}, got no such tensor ({len(targets)} missing)")
    if config.tie_word_embeddings:
        network.head.weight = network.get_parameter("embedding.weight")
    network.to(device).eval().requires_grad_(False)
    network.pack(arena)
    return network


def empty(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU in memory of its own, which is given back when it has been packed: malloc would keep much of it."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return huge_empty(shape.numel() * dtype.itemsize).view(dtype).view(shape)


def place(network: Network, name: str, weight: Tensor, arena: Arena) -> None:
    """Make a weight the network's own, packed at once where it can be: no two forms of all weights exist together."""
    path, _, kind = name.rpartition(".")
    module = network.get_submodule(path)
    setattr(module, kind, nn.Parameter(weight, requires_grad=False))
    if isinstance(module, Linear) and kind == "weight":
        module.pack(arena)


def weight_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file for shards; for a single file one entry. Raises ValueError where none is there."""
    if (folder / INDEX).exists():
        try:
            names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"expected JSON with a weight_map, got another file at {folder / INDEX}") from None
        outside = [name for name in names.values() if Path(name).name != name or not name.endswith(".safetensors")]
        if outside:
            raise ValueError(f"expected shards named *.safetensors beside {INDEX}, got {outside[0]!r}")
        files = {tensor: folder / name for tensor, name in names.items()}
    else:
        files = {"": folder / SINGLE}
    for path in sorted(set(files.values())):
        if not path.exists():
            pickles = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))
            found = f"{pickles[0].name}, a pickle, which is never opened" if pickles else "no such file"
            raise ValueError(f"expected the weights in {path}, got {found}")
    return files


def sources(name: str, config: ModelConfig, num_rows: int) -> Iterator[tuple[str, slice]]:
    """Hugging Face tensors that make up parameter `name`, and the rows that each one fills."""
    path, _, kind = name.rpartition(".")
    if path in OUTER:
        yield f"{OUTER[path]}.{kind}", slice(0, num_rows)
        return
    _, index, path = path.split(".", 2)
    q, kv, inner = config.num_query_heads * config.head_dim, config.num_kv_heads * config.head_dim, num_rows // 2
    fused = {
        "attention.qkv": [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
        "feed_forward.gate_and_up": [("mlp.gate_proj", inner), ("mlp.up_proj", inner)],
    }
    stop = 0
    for part, rows in fused.get(path) or [(INNER[path], num_rows)]:
        start, stop = stop, stop + rows
        yield f"model.layers.{index}.{part}.{kind}", slice(start, stop)


OUTER = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}

INNER = {
    "attention_norm": "input_layernorm",
    "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.down": "mlp.down_proj",
}


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """Open a file memory-mapped. Raises ValueError when it is cut off or not a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise ValueError(f"expected a whole safetensors file, got {size} bytes at {path}: {error}") from None


def copy_rows(target: Tensor, tensor: Tensor, source: str, path: Path) -> None:
    """Copy and convert. Raises ValueError when the shape or the kind of numbers differs."""
    if tensor.shape != target.shape:
        raise ValueError(
            f"expected {source} of shape {tuple(target.shape)} by config.json, got {tuple(tensor.shape)} in {path}"
        )
    if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"expected {source} in bfloat16, float16 or float32, got {tensor.dtype} in {path}")
    target.copy_(tensor)


def check_expected(source: str, path: Path, config: ModelConfig) -> None:
    """Raise ValueError for a tensor that would change the result and has no place in the network."""
    if source.endswith(COMPUTED) or (source == "lm_head.weight" and config.tie_word_embeddings):
        return
    raise ValueError(f"expected only the tensors of a {config.architecture} network, got {source} in {path}")
