"""The draft head: one transformer layer that guesses the target's next hidden state from its last one.

    position p:   h[p-1] (the target's hidden state), token p  ->  h'[p]  ->  a guess of token p + 1

    [norm(h[p-1]), norm(embedding of token p)] -> fuse -> decoder layer -> h'[p] -> norm -> rows of the target's head

The target computed h[p-1] anyway, and it holds more of what comes next than the token that was drawn from it
(EAGLE, Li et al. 2024). While drafting, the head's own h'[p] stands in for the h[p] that the target has not computed.
Embedding and output rows are the target's; only the tokens in `vocabulary` can be drafted, so the output costs little.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from servelab.model import Model, ModelConfig
from servelab.model.fused import FusedLayers
from servelab.model.network import Layer, RMSNorm
from servelab.model.weights import open_safetensors
from servelab.ops import Arena, Attention, Linear, RopeScaling, rotary_frequencies, rotary_tables

FORMAT = "servelab draft head 1"
VOCABULARY = "vocabulary"
# The head that comes with the package; it belongs to the offline model.
SHIPPED = Path(__file__).parent / "heads" / "smollm2-135m.safetensors"


class HeadNetwork(nn.Module):
    """One decoder layer over (hidden state, next token). Embedding and vocabulary rows stay the target's.

    config: the target's, or one that differs from it in the layer's own shapes (heads, feed-forward size).
    """

    frequencies: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = replace(config, num_layers=1)
        E, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = RMSNorm(E, eps)
        self.embedding_norm = RMSNorm(E, eps)
        self.fuse = Linear(2 * E, E, bias=False)
        self.layer = Layer(config, 0)
        self.fused = FusedLayers(nn.ModuleList([self.layer]))
        self.norm = RMSNorm(E, eps)
        with torch.device("cpu"):
            frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Guess the target's hidden states: [T, E]. Training and drafting differ in `attention` alone.

        hidden: [T, E] the target's state (before its final norm) of the token before each one, zeros where there is
        none; embeddings: [T, E] of the tokens themselves; positions: [T] theirs.
        attention: `PackedCausalAttention` over whole sequences, or `CachedAttention` over the head's own cache.
        """
        cos, sin = self.rotary_tables(positions)
        return self.guess(hidden, embeddings, cos, sin, attention)

    def rotary_tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``(cos, sin)``, each [T, 1, D], of positions [T]: what `guess` wants, for who guesses often."""
        return rotary_tables(positions, self.frequencies, self.norm.weight.dtype)

    def guess(self, hidden: Tensor, embeddings: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """`forward` with the rotation of each position at hand."""
        x: Tensor = self.fuse(torch.cat((self.hidden_norm(hidden), self.embedding_norm(embeddings)), dim=-1))
        fused = self.fused.run(x, cos, sin, attention)  # the layer in one compiled pass, where that can be
        if fused is not None:
            return fused
        guessed: Tensor = self.layer(x, cos, sin, attention)
        return guessed

    def logits(self, guessed: Tensor, rows: nn.Module) -> Tensor:
        """Logits [T, Vd] over the draft vocabulary. guessed: [T, E]; rows: `vocabulary_rows` of the target."""
        logits: Tensor = rows(self.norm(guessed))
        return logits


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A head that fits its target. vocabulary: [Vd] int64, ascending: the tokens it can draft."""

    network: HeadNetwork
    vocabulary: Tensor


def initial_network(target: Model, seed: int = 0) -> HeadNetwork:
    """An untrained head for `target`, in float32: small random weights, norms at 1. The same seed, the same weights."""
    network = HeadNetwork(target.config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 1.0 / math.sqrt(parameter.shape[1]), generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return network


def vocabulary_rows(target: Model, vocabulary: Tensor) -> Linear:
    """The rows of the target's output projection that belong to `vocabulary` [Vd]: E -> Vd, not packed."""
    with torch.device("meta"):
        rows = Linear(target.config.hidden_size, len(vocabulary), bias=False)
    weight = output_rows(target, vocabulary)
    rows.weight = nn.Parameter(weight, requires_grad=False)
    return rows


def output_rows(target: Model, vocabulary: Tensor) -> Tensor:
    """Rows [Vd, E] of the matrix that turns hidden states into logits, a copy in the target's dtype."""
    if target.config.tie_word_embeddings:
        embedding: Tensor = target.network.embedding(vocabulary.to(target.device))
        return embedding.detach().clone()
    return target.network.head.dense_weight().index_select(0, vocabulary.to(target.device))


def save_head(path: Path, network: HeadNetwork, vocabulary: Tensor, target: Model, notes: str = "") -> None:
    """Write the head as safetensors in bfloat16, with what is needed to tell which target it belongs to.

    vocabulary: [Vd] ids, ascending and distinct. notes: free text that travels in the file.
    """
    check_vocabulary(vocabulary, target)
    tensors = {
        name: parameter.detach().to(torch.bfloat16).contiguous() for name, parameter in network.named_parameters()
    }
    tensors[VOCABULARY] = vocabulary.to(torch.int32)
    metadata = {
        "format": FORMAT,
        "target": target.name,
        "fingerprint": fingerprint(target),
        "config": json.dumps(asdict(network.config)),
        "notes": notes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata=metadata)


def load_head(path: Path, target: Model) -> Head:
    """Read a head for `target`, in its dtype and on its device, ready for inference.

    Raises ValueError when the file is missing or cut off, is no draft head, or was trained for another model.
    """
    if not path.is_file():
        raise ValueError(f"expected a draft head (safetensors), got no file at {path}")
    with open_safetensors(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"expected {FORMAT!r} in {path}, got {metadata.get('format')!r}")
        config = read_config(metadata["config"])
        check_fits(metadata, config, target, path)
        with torch.device("meta"):
            network = HeadNetwork(config)
        names = {name for name, _ in network.named_parameters()} | {VOCABULARY}
        if set(file.keys()) != names:
            raise ValueError(f"expected the tensors {sorted(names)} in {path}, got {sorted(file.keys())}")
        weights = {name: file.get_tensor(name) for name in names}
    vocabulary = weights.pop(VOCABULARY).to(target.device, torch.int64)
    check_vocabulary(vocabulary, target)
    for name, parameter in network.named_parameters():
        if weights[name].shape != parameter.shape:
            raise ValueError(
                f"expected {name} of shape {tuple(parameter.shape)} in {path}, got {tuple(weights[name].shape)}"
            )
        weights[name] = weights[name].to(target.device, target.dtype)
    network.load_state_dict(weights, assign=True)
    with torch.device("cpu"):
        network.frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    network.to(target.device).eval().requires_grad_(False)
    arena = Arena(2 * sum(parameter.numel() for parameter in network.parameters()))
    for module in network.modules():
        if isinstance(module, Linear):
            module.pack(arena)
    return Head(network, vocabulary)


def read_config(text: str) -> ModelConfig:
    values = json.loads(text)
    scaling = values["rope_scaling"]
    values["rope_scaling"] = None if scaling is None else RopeScaling(**scaling)
    values["eos_token_ids"] = tuple(values["eos_token_ids"])
    return ModelConfig(**values)


def check_fits(metadata: dict[str, str], config: ModelConfig, target: Model, path: Path) -> None:
    """Raise ValueError unless the head was trained for `target`: for its shapes and for its very weights."""
    shapes = (config.hidden_size, config.vocab_size)
    expected = (target.config.hidden_size, target.config.vocab_size)
    if shapes != expected:
        raise ValueError(
            f"expected a draft head for {target.name} (hidden size {expected[0]}, vocabulary {expected[1]}), got one "
            f"for {metadata.get('target')} (hidden size {shapes[0]}, vocabulary {shapes[1]}) in {path}"
        )
    if metadata.get("fingerprint") != fingerprint(target):
        raise ValueError(
            f"expected a draft head trained on the weights of {target.name}, got one trained on other weights, "
            f"of {metadata.get('target')}, in {path}"
        )


def check_vocabulary(vocabulary: Tensor, target: Model) -> None:
    """Raise ValueError unless the ids ascend within the target's vocabulary."""
    ids = vocabulary.to(torch.int64)
    end = target.config.vocab_size
    ascends = ids.dim() == 1 and len(ids) > 0 and bool((ids[1:] > ids[:-1]).all())
    if not ascends or int(ids[0]) < 0 or int(ids[-1]) >= end:
        raise ValueError(f"expected distinct ascending token ids [Vd] in 0..{end - 1}, got {vocabulary.tolist()!r:.60}")


@torch.no_grad()
def fingerprint(target: Model) -> str:
    """A hash that tells the target's weights from others: of its norms, and of 64 rows of its embedding.

    Values are rounded to 1/1024 first, so that the model gives the same hash in float32, bfloat16 and float16.
    """
    vocab_size = target.config.vocab_size
    ids = torch.arange(0, vocab_size, max(1, vocab_size // 64), device=target.device)
    parts = [target.network.embedding(ids)]
    parts += [parameter for name, parameter in target.network.named_parameters() if "norm" in name]
    digest = hashlib.sha256()
    for part in parts:
        rounded = (part.detach().to(torch.bfloat16).float() * 1024).round().to(torch.int32)
        digest.update(rounded.cpu().numpy().tobytes())
    return digest.hexdigest()
