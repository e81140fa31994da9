"""What a trace says about KV reads: the right counts, and those that a hasty reader would get."""

from dataclasses import dataclass
from typing import Any

from servelab.trace import Admit, Schedule, Trace


@dataclass(frozen=True)
class Reading:
    """Counts of one trace.

    first_step: the first step that reads more bytes of KV than of weights, -1 if none does; cause: "arrival" when a
    request was admitted in it, else "context"; "never" if there is none.
    """

    prompt_tokens: int
    output_tokens: int
    written_bytes: int
    peak_tokens: int
    first_step: int
    cause: str
    peak_slots: int
    peak_tokens_at_end: int
    first_equal_step: int
    first_step_without_new: int


def read(trace_json: dict[str, Any], weight_bytes: int, kv_bytes_per_token: int) -> Reading:
    """Count a trace given as `Trace.to_json` made it."""
    trace = Trace.from_json(trace_json)
    reads = tokens_read(trace)
    news = [sum(count for _, count in rows) for rows in _rows(trace)]
    limit = weight_bytes / kv_bytes_per_token
    first = _first(reads, limit)
    return Reading(
        prompt_tokens=sum(request.num_prompt_tokens for request in trace.requests),
        output_tokens=sum(request.num_output_tokens for request in trace.requests),
        written_bytes=sum(news) * kv_bytes_per_token,
        peak_tokens=_peak(trace, "computed"),
        first_step=first,
        cause="never" if first < 0 else "arrival" if _admits(trace, first) else "context",
        peak_slots=max(sum(len(one.block_table) for one in state.requests) for state in trace.states())
        * trace.block_size,
        peak_tokens_at_end=_peak(trace, "end"),
        first_equal_step=next((step for step, tokens in enumerate(reads) if tokens >= limit), -1),
        first_step_without_new=_first([tokens - new for tokens, new in zip(reads, news, strict=True)], limit),
    )


def tokens_read(trace: Trace) -> list[int]:
    """For each step, the tokens whose K and V its rows read, their own new ones among them."""
    return [
        sum(state.requests[request].num_computed_tokens for request, _ in rows)
        for state, rows in zip(trace.states("computed"), _rows(trace), strict=True)
    ]


def choose_weight_bytes(trace_json: dict[str, Any], cause: str) -> int:
    """Weights so large that KV reads overtake them by an arrival, by growing contexts, or never.

    The step before the crossover that reads most reads exactly the weights' bytes: equal is not more.
    """
    trace = Trace.from_json(trace_json)
    reads = tokens_read(trace)
    if cause == "never":
        return max(reads) * trace.kv_bytes_per_token
    steps = [s for s in range(2, len(reads)) if reads[s] > max(reads[:s]) and _admits(trace, s) == (cause == "arrival")]
    return max(reads[: steps[len(steps) // 2]]) * trace.kv_bytes_per_token


def _rows(trace: Trace) -> list[tuple[tuple[int, int], ...]]:
    found = ([event.rows for event in step.events if isinstance(event, Schedule)] for step in trace.steps)
    return [rows[0] if rows else () for rows in found]


def _first(reads: list[int], limit: float) -> int:
    return next((step for step, tokens in enumerate(reads) if tokens > limit), -1)


def _peak(trace: Trace, moment: str) -> int:
    return max(
        sum(one.num_computed_tokens for one in state.requests if one.status == "running")
        for state in trace.states(moment)
    )


def _admits(trace: Trace, step: int) -> bool:
    return any(isinstance(event, Admit) for event in trace.steps[step].events)
