"""`Roofline`: how fast a machine can be for a given number of FLOPs per byte.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore architectures",
CACM 52(4), 2009.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roofline:
    """Two ceilings of one machine: arithmetic (FLOP/s) and memory (bytes/s)."""

    flops_per_s: float
    bandwidth_bytes_per_s: float
    name: str = ""

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bandwidth_bytes_per_s > 0):  # NaN is not above 0
            raise ValueError(
                f"expected positive ceilings, got {self.flops_per_s} FLOP/s and {self.bandwidth_bytes_per_s} bytes/s"
            )

    @property
    def ridge_point(self) -> float:
        """FLOPs per byte at which both ceilings meet: below it memory limits, above it arithmetic does."""
        return self.flops_per_s / self.bandwidth_bytes_per_s

    def attainable_flops_per_s(self, intensity: float) -> float:
        """The most FLOP/s at `intensity` FLOPs per byte."""
        return min(self.flops_per_s, intensity * self.bandwidth_bytes_per_s)

    def bound(self, intensity: float) -> str:
        """ "memory" or "compute": what limits work of `intensity` FLOPs per byte."""
        return "memory" if intensity < self.ridge_point else "compute"

    def seconds(self, flops: float, num_bytes: float) -> float:
        """The least time for `flops` operations that move `num_bytes`, both at their ceiling and overlapping."""
        return max(flops / self.flops_per_s, num_bytes / self.bandwidth_bytes_per_s)
