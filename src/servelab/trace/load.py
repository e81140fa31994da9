"""What a load on a server measured: points of latency and throughput, and the server's memory against time.

Times are seconds since the load began, latencies milliseconds; prompt tokens and output tokens are told apart.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "servelab-load"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What each request must keep to count as good. None: not asked for.

    ttft_ms: to the first token. tpot_ms: mean between tokens after the first; an answer of one token keeps it.
    latency_ms: to the last token. Raises ValueError for what is not positive.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise ValueError(f"expected {name} as a positive number of milliseconds, got {value!r}")

    @property
    def asks(self) -> bool:
        """Whether anything is asked for."""
        return any(getattr(self, name) is not None for name in self.__slots__)

    def is_kept(self, ttft_ms: float, tpot_ms: float | None, latency_ms: float) -> bool:
        """Whether a request kept all of it. tpot_ms: None for an answer of one token."""
        measured = (ttft_ms, tpot_ms, latency_ms)
        asked = (self.ttft_ms, self.tpot_ms, self.latency_ms)
        return all(
            limit is None or value is None or value <= limit for value, limit in zip(measured, asked, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A mean and three percentiles of a latency, all in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float], weights: Sequence[float] | None = None) -> "Quantiles | None":
        """The smallest value that at least 50, 95 and 99 % of the weight do not exceed; None where there is none.

        weights: how often each value counts (default: once).
        """
        pairs = sorted(zip(values, weights or [1.0] * len(values), strict=True))
        total = sum(weight for _, weight in pairs)
        if not total:
            return None
        mean = sum(value * weight for value, weight in pairs) / total
        return cls(mean, *(_quantile(pairs, share * total) for share in (0.50, 0.95, 0.99)))


def _quantile(pairs: Sequence[tuple[float, float]], wanted: float) -> float:
    """The first value, in order, up to which the weights come to `wanted`."""
    seen = 0.0
    for value, weight in pairs:
        seen += weight
        if seen >= wanted * (1 - 1e-12):
            return value
    return pairs[-1][0]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load that was held until enough had been measured.

    arrival: "concurrent" (streams: requests kept in flight), "poisson" or "constant" (rate_per_s: asked for),
    "synchronous" (one after another), "throughput" (as many as the server takes).
    concurrency: mean requests in flight, measured. completed, failed: requests that ended so; incomplete: cut off when
    the measurement ended. ttft_ms, itl_ms, tpot_ms, latency_ms: of completed requests, None where there are none.
    A request's tpot is its mean gap between tokens after the first; itl is the same, each request counted once a gap,
    because single gaps are not kept. good: completed requests within the service level, None where none was asked for.
    errors: what the failed ones said, each once.
    """

    arrival: str
    streams: int | None
    rate_per_s: float | None
    start_s: float
    end_s: float
    concurrency: float
    completed: int
    failed: int
    incomplete: int
    prompt_tokens: float
    output_tokens: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: Quantiles | None
    itl_ms: Quantiles | None
    tpot_ms: Quantiles | None
    latency_ms: Quantiles | None
    good: int | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def goodput_share(self) -> float | None:
        """Good requests among all that ended; those that failed are not good. None where no level was asked for."""
        ended = self.completed + self.failed
        return None if self.good is None or not ended else self.good / ended

    @property
    def goodput_per_s(self) -> float | None:
        """Good requests a second."""
        return None if self.good is None else self.good / (self.end_s - self.start_s)

    @property
    def label(self) -> str:
        """What was asked of the server, in a word or two."""
        if self.streams is not None:
            return f"{self.streams}"
        return self.arrival if self.rate_per_s is None else f"{self.rate_per_s:g}/s"


@dataclass(frozen=True, slots=True)
class MemorySample:
    """What a server's `/metrics` said at a moment. kv_usage: share of the KV cache in use, 1 for all of it."""

    t_s: float
    kv_usage: float
    running: int
    waiting: int


@dataclass(slots=True)
class LoadReport:
    """A load and what came of it.

    profile: how it was run. tool: what sent it, with its version. date: of its start, ISO 8601.
    prompt, output: lengths that were asked for, in words. samples: empty where the server has no `/metrics`.
    best_streams: the highest number of streams within the service level, where the profile looked for it.
    """

    url: str
    model: str
    profile: str
    tool: str
    date: str
    prompt: str
    output: str
    seed: int
    service_level: ServiceLevel = field(default_factory=ServiceLevel)
    points: list[LoadPoint] = field(default_factory=list)
    samples: list[MemorySample] = field(default_factory=list)
    best_streams: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, format and version first."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON. The file appears whole or not at all."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LoadReport":
        """Read a saved report. Raises ValueError for another format, another version or a cut-off file."""
        try:
            data = json.loads(Path(path).read_bytes().decode("utf-8"))
        except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"expected a whole JSON report in {path}, got something else: {error}") from None
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: Any) -> "LoadReport":
        """Rebuild a report from `to_json`. Raises ValueError that names what was expected and what came."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"expected JSON with format {FORMAT!r}, got {str(data)[:60]!r}")
        if data.get("version") != VERSION:
            raise ValueError(f"expected a report of version {VERSION}, got version {data.get('version')!r}")
        rest = {name: value for name, value in data.items() if name not in ("format", "version")}
        try:
            rest["service_level"] = ServiceLevel(**rest["service_level"])
            rest["points"] = [_point(point) for point in rest["points"]]
            rest["samples"] = [MemorySample(**sample) for sample in rest["samples"]]
            return cls(**rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected the fields of a version {VERSION} report, got: {error}") from None


def _point(data: dict[str, Any]) -> LoadPoint:
    latencies = {
        name: None if data[name] is None else Quantiles(**data[name])
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "latency_ms")
    }
    return LoadPoint(**{**data, **latencies})
