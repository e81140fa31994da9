"""`Deployment`: a model on a machine, and how long a step of it takes there."""

import math
from dataclasses import dataclass

from servelab.costs import ModelSpec, Roofline, StepWork, kv_cache_bytes_per_token, step_bytes, step_flops
from servelab.costs.memory import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on a machine. Every number is an assumption that can be changed; ValueError for one that cannot be.

    A step of `bytes` and `flops` takes ``roofline / efficiency + overhead_s``, where the roofline is the longer of
    ``bytes / bandwidth`` and ``flops / (FLOP/s)``, or with ``overlap=False`` their sum.

    bytes_per_parameter: of a weight (2: 16 bit); bytes_per_embedding: of embedding table and output projection, None
        is as all weights. bytes_per_element: of a number of K or V.
    efficiency: the share of the roofline that is reached, above 0; `fit_efficiency` finds it. Above 1 the ceilings
        are lower than the machine's, as when they were measured while something else ran.
    overlap: whether memory is read while the arithmetic goes on, as many warps let a GPU do. A core that waits for
        what it multiplies next does one after the other.
    overhead_s: seconds of a step whatever it computes: scheduling, launches, sampling, text.
    """

    spec: ModelSpec
    roofline: Roofline
    bytes_per_parameter: float = 2
    bytes_per_embedding: float | None = None
    bytes_per_element: float = 2
    efficiency: float = 1.0
    overlap: bool = True
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bytes_per_parameter", "bytes_per_embedding", "bytes_per_element", "efficiency"):
            value = getattr(self, name)
            if name == "bytes_per_embedding" and value is None:
                continue
            if not is_number(value) or not 0 < value < math.inf:
                raise ValueError(f"expected {name} above 0, got {value!r}")
        if not isinstance(self.overlap, bool):
            raise ValueError(f"expected overlap to be True or False, got {self.overlap!r}")
        if not is_number(self.overhead_s) or not 0 <= self.overhead_s < math.inf:
            raise ValueError(f"expected overhead_s as seconds of at least 0, got {self.overhead_s!r}")

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_cache_bytes_per_token(self.spec, self.bytes_per_element)

    def roofline_seconds(self, work: StepWork) -> float:
        """Seconds of the step's traffic and arithmetic at the machine's ceilings."""
        num_bytes = step_bytes(
            self.spec, work, self.bytes_per_parameter, self.bytes_per_element, self.bytes_per_embedding
        )
        flops = step_flops(self.spec, work)
        if self.overlap:
            return self.roofline.seconds(flops, num_bytes)
        return flops / self.roofline.flops_per_s + num_bytes / self.roofline.bandwidth_bytes_per_s

    def step_seconds(self, work: StepWork) -> float:
        """Seconds of the step."""
        return self.roofline_seconds(work) / self.efficiency + self.overhead_s
