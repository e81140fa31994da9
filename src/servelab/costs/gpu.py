"""GPUs that the course speaks of: memory, bandwidth and peak arithmetic, each with its source.

Datasheets print tensor-core peaks "with sparsity" (half of the weights zero in a fixed pattern); language models are
served dense, so the dense peak stands here: half of the printed number where the footnote says so. A datasheet's GB
is taken as 10^9 bytes. What the driver reports can be used is more for some cards, and that is what a budget divides.
Peaks are ceilings: no program reaches them.
"""

from dataclasses import dataclass

from servelab.costs.roofline import Roofline

TERA = 1e12
GIGA = 1e9
MIB = 2**20


@dataclass(frozen=True, slots=True)
class GPUSpec:
    """One GPU. flops_per_s: dense tensor-core peak by dtype name, float32 accumulation; a missing dtype has none.

    memory_bytes: as the datasheet says. reported_bytes: the whole memory as `nvidia-smi` lists it on such a card; 0
    means as the datasheet says.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: dict[str, float]
    compute_capability: str
    source: str
    reported_bytes: int = 0

    def __post_init__(self) -> None:
        if self.reported_bytes == 0:
            object.__setattr__(self, "reported_bytes", self.memory_bytes)

    @property
    def default_dtype(self) -> str:
        """What models run in here: "bfloat16" where there is a peak for it, else the first dtype ("float16")."""
        return "bfloat16" if "bfloat16" in self.flops_per_s else next(iter(self.flops_per_s))

    def roofline(self, dtype: str | None = None) -> Roofline:
        """Both ceilings for `dtype` (default: `default_dtype`). Raises ValueError for a dtype it has no peak for."""
        dtype = dtype or self.default_dtype
        if dtype not in self.flops_per_s:
            raise ValueError(f"expected a dtype of {self.name} ({', '.join(self.flops_per_s)}), got {dtype!r}")
        return Roofline(self.flops_per_s[dtype], self.bandwidth_bytes_per_s, self.name)


def _peaks(half: float, *, bfloat16: bool = True, fp8: bool = False) -> dict[str, float]:
    """Peaks in FLOP/s from the dense 16-bit peak in TFLOP/s; 8-bit floats run at twice that."""
    peaks = {"float16": half * TERA}
    if bfloat16:
        peaks["bfloat16"] = half * TERA
    if fp8:
        peaks["fp8"] = 2 * half * TERA
    return peaks


GPU_SPECS: dict[str, GPUSpec] = {
    spec.name: spec
    for spec in (
        GPUSpec(
            "A100 80GB SXM",
            int(80 * GIGA),
            2_039 * GIGA,
            _peaks(312),
            "8.0",
            "NVIDIA A100 80GB datasheet (nvidia-a100-datasheet-us-nvidia-1758950-r4), June 2021",
            81_920 * MIB,
        ),
        GPUSpec(
            "H100 SXM",
            int(80 * GIGA),
            3_350 * GIGA,
            _peaks(989.4, fp8=True),
            "9.0",
            "NVIDIA H100 Tensor Core GPU datasheet, 2023: 3.35 TB/s, 1,979 TFLOPS with sparsity; "
            "dense 989.4 in the H100 architecture whitepaper, table 2",
            81_559 * MIB,
        ),
        GPUSpec(
            "H200 SXM",
            int(141 * GIGA),
            4_800 * GIGA,
            _peaks(989.4, fp8=True),
            "9.0",
            "NVIDIA H200 Tensor Core GPU datasheet, 2024: 141 GB, 4.8 TB/s, 1,979 TFLOPS with sparsity",
            143_771 * MIB,
        ),
        GPUSpec(
            "L4",
            int(24 * GIGA),
            300 * GIGA,
            _peaks(121, fp8=True),
            "8.9",
            "NVIDIA L4 Tensor Core GPU datasheet, 2023: 300 GB/s, 242 TFLOPS with sparsity",
            23_034 * MIB,
        ),
        GPUSpec(
            "T4",
            int(16 * GIGA),
            320 * GIGA,
            _peaks(65, bfloat16=False),
            "7.5",
            "NVIDIA T4 product brief PB-09256-001, 2019: 320 GB/s, 65 TFLOPS float16, no bfloat16 "
            "(the later datasheet rounds to 300 GB/s)",
            15_360 * MIB,
        ),
        GPUSpec(
            "RTX 4090",
            int(24 * GIGA),
            1_008 * GIGA,
            _peaks(165.2, fp8=True),
            "8.9",
            "NVIDIA Ada GPU architecture whitepaper v2, 2023, appendix A: 1,008 GB/s, 165.2 TFLOPS float16 with "
            "float32 accumulation, dense",
            24_564 * MIB,
        ),
    )
}
