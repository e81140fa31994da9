"""`Load`: which requests a server gets, how many and when; and the same in GuideLLM's words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from servelab.serving.guidellm import REPORT
from servelab.serving.target import Target
from servelab.trace.load import ServiceLevel

PROFILES = ("concurrent", "poisson", "constant", "sweep", "goodput")
DEFAULT_SECONDS = 20.0
PREFETCHED = 64  # prompts made ahead: GuideLLM's own 4,096 take a core from the server while they are made
PROBES = 15  # that a search for goodput may take


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many tokens, fixed or drawn for each request.

    With stdev, GuideLLM draws from a normal distribution and moves what lies outside to shortest and longest. A stdev
    of the size of the mean or above makes many requests short and gives the others a long tail; the mean of what is
    sent is then another one, and is in the report. Default bounds: mean less and plus five stdev, and at least 1.
    Raises ValueError for lengths that cannot be.
    """

    mean: int
    stdev: int | None = None
    shortest: int | None = None
    longest: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not (type(value) is int and value > 0):
                raise ValueError(f"expected {name} as a positive number of tokens, got {value!r}")
        if self.stdev is None and (self.shortest or self.longest):
            raise ValueError("expected shortest and longest only where a stdev is given")
        if not (self.shortest or 1) <= self.mean <= (self.longest or self.mean):
            raise ValueError(f"expected shortest <= mean <= longest, got {self.shortest}, {self.mean}, {self.longest}")

    def describe(self) -> str:
        if self.stdev is None:
            return f"{self.mean} tokens"
        low, high = self.shortest or max(1, self.mean - 5 * self.stdev), self.longest or self.mean + 5 * self.stdev
        return f"{self.mean} +- {self.stdev} tokens in {low}..{high}"

    def fields(self, of: str) -> dict[str, int]:
        """In GuideLLM's words."""
        named = {"": self.mean, "_stdev": self.stdev, "_min": self.shortest, "_max": self.longest}
        return {f"{of}_tokens{ending}": value for ending, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load, the same each time for the same seed.

    profile: "concurrent" keeps each number of `streams` in flight in turn. "poisson" and "constant" send each of
    `rates` requests a second in turn, at random or even distances. "sweep" measures one request at a time, then all at
    once, and `num_levels` - 2 constant rates in between. "goodput" doubles and then halves the streams, from streams[0]
    to at most `max_streams`, to find the most of which `target_share` of the requests keep the service level.
    requests, seconds: what ends a level, whichever comes first (default: 20 seconds).
    max_streams: also the most in flight where rates are given; None for no bound there, and for 1,024 in a search.
    shared_prefix_tokens: come before each prompt, one of `num_shared_prefixes` texts.
    chat: send to `/v1/chat/completions` instead of `/v1/completions`.
    Raises ValueError for a load that cannot be.
    """

    profile: str = "concurrent"
    streams: Sequence[int] = (1, 2, 4, 8)
    rates: Sequence[float] = ()
    num_levels: int = 6
    requests: int | None = None
    seconds: float | None = None
    max_streams: int | None = None
    prompt: Lengths = Lengths(64)
    output: Lengths = Lengths(32)
    shared_prefix_tokens: int = 0
    num_shared_prefixes: int = 1
    seed: int = 0
    service_level: ServiceLevel = field(default_factory=ServiceLevel)
    target_share: float = 0.95
    chat: bool = False

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"expected profile as one of {PROFILES}, got {self.profile!r}")
        if not self.streams or any(type(count) is not int or count < 1 for count in self.streams):
            raise ValueError(f"expected streams as numbers of at least 1, got {list(self.streams)}")
        if self.profile in ("poisson", "constant") and not self.rates:
            raise ValueError(f"expected rates, in requests a second, for the profile {self.profile!r}, got none")
        if any(not 0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"expected rates above 0, got {list(self.rates)}")
        if self.profile == "goodput" and not self.service_level.asks:
            raise ValueError("expected a service level for the profile 'goodput', got none")
        limits: dict[str, tuple[float | None, float]] = {
            "requests": (self.requests, 1),
            "max_streams": (self.max_streams, 1),
            "num_levels": (self.num_levels, 3),
            "shared_prefix_tokens": (self.shared_prefix_tokens, 0),
            "num_shared_prefixes": (self.num_shared_prefixes, 1),
            "seed": (self.seed, 0),
        }
        for name, (value, low) in limits.items():
            if value is not None and value < low:
                raise ValueError(f"expected {name} of at least {low}, got {value}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"expected seconds above 0, got {self.seconds}")
        if not 0 < self.target_share < 1:
            raise ValueError(f"expected target_share between 0 and 1, got {self.target_share}")

    @property
    def time_limit_s(self) -> float | None:
        return DEFAULT_SECONDS if self.requests is None and self.seconds is None else self.seconds

    @property
    def levels(self) -> int | None:
        """How many levels there will be; None where the profile decides."""
        known = {"concurrent": len(self.streams), "sweep": self.num_levels, "goodput": None}
        return known.get(self.profile, len(self.rates))

    def scenario(self, target: Target, model: str, tokenizer: str) -> dict[str, Any]:
        """What GuideLLM is told, as its scenario file has it."""
        backend: dict[str, Any] = {
            "kind": "openai_http",
            "target": target.url,
            "model": model,
            "validate_backend": False,
            "verify": True,
        }
        backend["request_format"] = "/v1/chat/completions" if self.chat else "/v1/completions"
        if target.api_key:
            backend["api_key"] = target.api_key
        data = {"kind": "synthetic_text", **self.prompt.fields("prompt"), **self.output.fields("output")}
        if self.shared_prefix_tokens:
            data |= {"prefix_tokens": self.shared_prefix_tokens, "prefix_count": self.num_shared_prefixes}
        constraints: list[dict[str, Any]] = []
        if self.requests is not None:
            constraints.append({"kind": "max_requests", "count": self.requests})
        if self.time_limit_s is not None:
            constraints.append({"kind": "max_duration", "seconds": self.time_limit_s})
        profile, levels = self._profile()
        spec = {
            "backend": backend,
            "profile": profile,
            "constraints": constraints,
            "tokenizer": {"kind": "hf_auto", "model": tokenizer},
            "data": [data],
            "data_loader": {"kind": "pytorch", "prefetch_factor": PREFETCHED},
            "seed": {"kind": "static", "value": self.seed},
            "outputs": [{"kind": "json", "path": REPORT}],
            "metrics": {"kind": "generative", "sample_size": 0, **self._objectives()},
        }
        return {"spec": spec, **({"benchmarks": levels} if levels else {})}

    def _profile(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        bound = {} if self.max_streams is None else {"max_concurrency": self.max_streams}
        match self.profile:
            case "concurrent":
                return {"kind": "concurrent"}, [{"profile.streams": count} for count in self.streams]
            case "sweep":
                return {"kind": "sweep", "sweep_size": self.num_levels, **bound}, []
            case "goodput":
                most = {} if self.max_streams is None else {"max_streams": self.max_streams}
                search = {"initial_streams": self.streams[0], "target_attainment": self.target_share, **most}
                return {"kind": "goodput", "max_probes": PROBES, **search}, []
            case _:
                return {"kind": self.profile, **bound}, [{"profile.rate": rate} for rate in self.rates]

    def _objectives(self) -> dict[str, Any]:
        level = self.service_level
        named = {"ttft_ms": level.ttft_ms, "tpot_ms": level.tpot_ms, "e2el_ms": level.latency_ms}
        return {"slo": {name: value for name, value in named.items() if value is not None}} if level.asks else {}
