"""`ModelConfig`: the numbers that define a network, read from a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servelab.ops import RopeScaling


class UnsupportedModel(ValueError):
    """The model needs something that this network does not have; the message names it."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family. Sizes are counts of numbers, `max_context` is in tokens.

    architecture: "llama", "qwen2" or "qwen3".
    qkv_bias, output_bias, mlp_bias: which projections add a bias. qk_norm: RMSNorm on every query and key head.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_query_heads",
            "num_kv_heads",
            "head_dim",
            "max_context",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} of at least 1, got {getattr(self, name)}")
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"expected query heads divisible by KV heads, got {self.num_query_heads} query heads "
                f"and {self.num_kv_heads} KV heads"
            )

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights; tied embeddings count once."""
        E, heads = self.hidden_size, self.num_query_heads + 2 * self.num_kv_heads
        q_size, qkv_size = self.num_query_heads * self.head_dim, heads * self.head_dim
        attention = E * qkv_size + q_size * E + self.qkv_bias * qkv_size + self.output_bias * E
        attention += self.qk_norm * 2 * self.head_dim
        mlp = 3 * E * self.intermediate_size + self.mlp_bias * (2 * self.intermediate_size + E)
        embeddings = self.vocab_size * E * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * (attention + mlp + 2 * E) + E + embeddings

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Read the values of a `config.json`, written by transformers 4 or 5.

        Raises UnsupportedModel (a ValueError) for an architecture or an option that is not implemented here,
        and ValueError for a value that is missing.
        """
        architecture = values.get("model_type")
        if architecture not in DEFAULTS:
            custom = "; its own code (auto_map) is never run" if "auto_map" in values else ""
            raise UnsupportedModel(f"expected model_type in {sorted(DEFAULTS)}, got {architecture!r}{custom}")
        read = {**DEFAULTS[architecture], **{key: value for key, value in values.items() if value is not None}}
        check_supported(read)
        missing = [key for key in REQUIRED if key not in read]
        if missing:
            raise ValueError(f"expected {', '.join(missing)} in config.json, got only {sorted(values)}")
        heads = read["num_attention_heads"]
        bias = bool(read["attention_bias"])
        eos = read.get("eos_token_id", ())
        theta, scaling = read_rope(read)
        return cls(
            architecture=architecture,
            vocab_size=read["vocab_size"],
            hidden_size=read["hidden_size"],
            intermediate_size=read["intermediate_size"],
            num_layers=read["num_hidden_layers"],
            num_query_heads=heads,
            num_kv_heads=read.get("num_key_value_heads", heads),
            head_dim=read.get("head_dim", read["hidden_size"] // heads),
            max_context=read["max_position_embeddings"],
            rms_norm_eps=read["rms_norm_eps"],
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=bool(read["tie_word_embeddings"]),
            qkv_bias=bias or architecture == "qwen2",
            output_bias=bias,
            mlp_bias=bool(read["mlp_bias"]),
            qk_norm=architecture == "qwen3",
            eos_token_ids=(eos,) if isinstance(eos, int) else tuple(eos),
        )


REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

COMMON: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
}

# What transformers assumes where config.json is silent.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "max_position_embeddings": 2048},
    "qwen2": {**COMMON, "max_position_embeddings": 32_768, "num_key_value_heads": 32},
    "qwen3": {**COMMON, "max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
}

CAUSAL_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def check_supported(read: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for an option that would change the result and is not implemented."""
    expected = CAUSAL_CLASSES[read["model_type"]]
    classes = read.get("architectures", [expected])
    if expected not in classes:
        raise UnsupportedModel(f"expected a language model ({expected}), got architectures {classes}")
    if read["hidden_act"] not in ("silu", "swish"):
        raise UnsupportedModel(f"expected hidden_act 'silu', got {read['hidden_act']!r}")
    if read.get("use_sliding_window") or "sliding_attention" in read.get("layer_types", ()):
        raise UnsupportedModel(
            f"expected full attention in every layer, got a sliding window of {read.get('sliding_window')} tokens"
        )
    if "quantization_config" in read:
        method = read["quantization_config"].get("quant_method")
        raise UnsupportedModel(f"expected weights in bfloat16, float16 or float32, got {method!r} quantization")


def read_rope(read: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    rope = {**read.get("rope_scaling", {}), **read.get("rope_parameters", {})}
    theta = float(rope.get("rope_theta", read["rope_theta"]))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", read.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("expected RoPE on the whole head, got a partial_rotary_factor")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModel(f"expected rope_type 'default' or 'llama3', got {kind!r}")
    try:
        return theta, RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_context=int(rope["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ValueError(f"expected {error} among the llama3 RoPE values, got {sorted(rope)}") from None
