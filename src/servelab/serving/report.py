"""What GuideLLM's JSON says, as the course's records. Latencies are computed here, from what it keeps of each request.

GuideLLM calls "inter token latency" a request's mean gap between tokens after the first, the TPOT of vLLM and of this
course, and "time per output token" a mean that counts the first; only the former is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from servelab.serving.guidellm import LoadFailed
from servelab.trace.load import LoadPoint, LoadReport, Quantiles, ServiceLevel
from servelab.translation import _

VERSION = 2
MOST_ERRORS = 5


def read_report(content: Any, report: LoadReport, begin_s: float | None = None) -> None:
    """Put what GuideLLM measured into `report`.

    begin_s: the Unix time that the report's times count from (default: the start of the first level).
    Raises LoadFailed where the JSON is of another version or form, or has no level.
    """
    try:
        version = content["metadata"]["version"]
        if version != VERSION:
            raise LoadFailed(
                _("Expected a report of version {expected} from GuideLLM, got version {version}").format(
                    expected=VERSION, version=version
                )
            )
        report.tool = f"guidellm {content['metadata']['guidellm_version']}"
        levels = content["benchmarks"]
        if not levels:
            raise LoadFailed(_("GuideLLM measured nothing: no level came to its end."))
        begin_s = min(level["start_time"] for level in levels) if begin_s is None else begin_s
        report.points = [read_point(level, report.service_level, begin_s) for level in levels]
        found = [conclusion for conclusion in content.get("conclusions") or [] if "best_passing_streams" in conclusion]
        report.best_streams = found[0]["best_passing_streams"] if found else None
    except (KeyError, TypeError, AttributeError) as error:
        raise LoadFailed(
            _("Expected the fields of a version {expected} report from GuideLLM, got: {error}").format(
                expected=VERSION, error=repr(error)
            )
        ) from None


def read_point(level: Mapping[str, Any], service_level: ServiceLevel, begin_s: float) -> LoadPoint:
    """One level of a report."""
    strategy = level["config"]["strategy"]
    completed, failed, incomplete = (
        level["requests"][status] or [] for status in ("successful", "errored", "incomplete")
    )
    start_s, end_s = float(level["start_time"]), float(level["end_time"])
    duration_s = max(end_s - start_s, 1e-9)
    several = [request for request in completed if request["inter_token_latency_ms"] is not None]
    tpot_ms = present(several, "inter_token_latency_ms")
    return LoadPoint(
        arrival=strategy["type_"],
        streams=strategy.get("streams", 1 if strategy["type_"] == "synchronous" else None),
        rate_per_s=strategy.get("rate"),
        start_s=start_s - begin_s,
        end_s=start_s - begin_s + duration_s,
        concurrency=in_flight(start_s, end_s, [*completed, *failed, *incomplete]) / duration_s,
        completed=len(completed),
        failed=len(failed),
        incomplete=len(incomplete),
        prompt_tokens=mean([request["prompt_tokens"] or 0 for request in completed]),
        output_tokens=mean([request["output_tokens"] or 0 for request in completed]),
        requests_per_s=len(completed) / duration_s,
        output_tokens_per_s=sum(request["output_tokens"] or 0 for request in completed) / duration_s,
        ttft_ms=Quantiles.of(present(completed, "time_to_first_token_ms")),
        itl_ms=Quantiles.of(tpot_ms, [request["output_tokens"] - 1 for request in several]),
        tpot_ms=Quantiles.of(tpot_ms),
        latency_ms=Quantiles.of([1000 * value for value in present(completed, "request_latency")]),
        good=sum(is_good(request, service_level) for request in completed) if service_level.asks else None,
        errors=errors(failed),
    )


def is_good(request: Mapping[str, Any], level: ServiceLevel) -> bool:
    """Whether a completed request kept the level. One that was not measured did not."""
    ttft_ms, latency_s = request["time_to_first_token_ms"], request["request_latency"]
    if ttft_ms is None or latency_s is None:
        return False
    return level.is_kept(ttft_ms, request["inter_token_latency_ms"], 1000 * latency_s)


def in_flight(start_s: float, end_s: float, requests: Sequence[Mapping[str, Any]]) -> float:
    """Seconds that requests were in flight between two times, all together."""
    total_s = 0.0
    for request in requests:
        timings = request["info"]["timings"]
        if timings["request_start"] is not None:
            ended_s = timings["request_end"] or timings["resolve_end"] or end_s
            total_s += max(0.0, min(ended_s, end_s) - max(timings["request_start"], start_s))
    return total_s


def present(requests: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [request[name] for request in requests if request[name] is not None]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def errors(failed: Sequence[Mapping[str, Any]]) -> list[str]:
    """What went wrong, each sentence once, the first five."""
    said = dict.fromkeys(str(request["info"]["error"] or _("no reason given"))[:300] for request in failed)
    return list(said)[:MOST_ERRORS]
