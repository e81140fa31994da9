"""Language models that the course speaks of: the shapes that decide their bytes and FLOPs, each with its source."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes of one decoder-only transformer.

    num_active_parameters: parameters that one token passes (fewer than all in a mixture of experts; 0 means all).
    kv_lora_rank, rope_head_dim: multi-head latent attention (MLA) stores one latent of ``kv_lora_rank`` numbers and
    one rotary key of ``rope_head_dim`` per token and layer instead of K and V per head; 0 means K and V are stored.
    tied_embeddings: the output projection is the embedding table itself.
    num_experts, num_experts_per_token: routed experts of a layer, and how many a token takes; 0 means dense.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_parameters: int
    max_context: int
    source: str = ""
    intermediate_size: int = 0
    num_active_parameters: int = 0
    tied_embeddings: bool = False
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0

    def __post_init__(self) -> None:
        if self.num_active_parameters == 0:
            object.__setattr__(self, "num_active_parameters", self.num_parameters)
        for name in ("num_layers", "hidden_size", "num_query_heads", "num_kv_heads", "head_dim", "num_parameters"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} of at least 1, got {getattr(self, name)}")
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"expected query heads in equal groups per KV head, got {self.num_query_heads} query heads "
                f"and {self.num_kv_heads} KV heads"
            )

    @property
    def attention(self) -> str:
        """ "MHA", "GQA", "MQA" or "MLA"."""
        if self.kv_lora_rank:
            return "MLA"
        if self.num_kv_heads == self.num_query_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that the KV cache stores per token, over all layers."""
        if self.kv_lora_rank:
            return self.num_layers * (self.kv_lora_rank + self.rope_head_dim)
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

    @property
    def num_lookup_parameters(self) -> int:
        """The embedding table where only rows are looked up: it takes no part in a product (0 when tied)."""
        return 0 if self.tied_embeddings else self.vocab_size * self.hidden_size

    @property
    def num_embedding_parameters(self) -> int:
        """Embedding table and output projection together: two tables of the vocabulary, or one when tied."""
        return self.vocab_size * self.hidden_size + self.num_lookup_parameters

    @property
    def num_routed_parameters(self) -> int:
        """Parameters of all routed experts together (0 when dense)."""
        if not self.num_experts:
            return 0
        idle_share = 1 - self.num_experts_per_token / self.num_experts
        return round((self.num_parameters - self.num_active_parameters) / idle_share)


MODEL_SPECS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            "SmolLM2-135M",
            num_layers=30,
            hidden_size=576,
            num_query_heads=9,
            num_kv_heads=3,
            head_dim=64,
            vocab_size=49_152,
            num_parameters=134_515_008,
            max_context=8_192,
            intermediate_size=1_536,
            tied_embeddings=True,
            source="config.json of HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        ModelSpec(
            "Qwen3-0.6B",
            num_layers=28,
            hidden_size=1_024,
            num_query_heads=16,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=151_936,
            num_parameters=596_049_920,
            max_context=40_960,
            intermediate_size=3_072,
            tied_embeddings=True,
            source="config.json of Qwen/Qwen3-0.6B",
        ),
        ModelSpec(
            "Qwen3-8B",
            num_layers=36,
            hidden_size=4_096,
            num_query_heads=32,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=151_936,
            num_parameters=8_190_735_360,
            max_context=40_960,
            intermediate_size=12_288,
            source="config.json of Qwen/Qwen3-8B",
        ),
        ModelSpec(
            "Llama-2-7B",
            num_layers=32,
            hidden_size=4_096,
            num_query_heads=32,
            num_kv_heads=32,
            head_dim=128,
            vocab_size=32_000,
            num_parameters=6_738_415_616,
            max_context=4_096,
            intermediate_size=11_008,
            source="config.json of meta-llama/Llama-2-7b-hf; arXiv:2307.09288",
        ),
        ModelSpec(
            "Llama-2-13B",
            num_layers=40,
            hidden_size=5_120,
            num_query_heads=40,
            num_kv_heads=40,
            head_dim=128,
            vocab_size=32_000,
            num_parameters=13_015_864_320,
            max_context=4_096,
            intermediate_size=13_824,
            source="config.json of meta-llama/Llama-2-13b-hf; arXiv:2307.09288",
        ),
        ModelSpec(
            "Llama-2-70B",
            num_layers=80,
            hidden_size=8_192,
            num_query_heads=64,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=32_000,
            num_parameters=68_976_648_192,
            max_context=4_096,
            intermediate_size=28_672,
            source="config.json of meta-llama/Llama-2-70b-hf; arXiv:2307.09288",
        ),
        ModelSpec(
            "Llama-3-8B",
            num_layers=32,
            hidden_size=4_096,
            num_query_heads=32,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128_256,
            num_parameters=8_030_261_248,
            max_context=8_192,
            intermediate_size=14_336,
            source="config.json of meta-llama/Meta-Llama-3-8B; arXiv:2407.21783",
        ),
        ModelSpec(
            "Llama-3-70B",
            num_layers=80,
            hidden_size=8_192,
            num_query_heads=64,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128_256,
            num_parameters=70_553_706_496,
            max_context=8_192,
            intermediate_size=28_672,
            source="config.json of meta-llama/Meta-Llama-3-70B; arXiv:2407.21783",
        ),
        ModelSpec(
            "DeepSeek-V3",
            num_layers=61,
            hidden_size=7_168,
            num_query_heads=128,
            num_kv_heads=128,
            head_dim=128,
            vocab_size=129_280,
            num_parameters=671_026_419_200,
            num_active_parameters=37_552_297_472,
            max_context=163_840,
            intermediate_size=18_432,
            kv_lora_rank=512,
            rope_head_dim=64,
            num_experts=256,
            num_experts_per_token=8,
            source="config.json of deepseek-ai/DeepSeek-V3; arXiv:2412.19437 (its one extra prediction layer left out)",
        ),
    )
}
