"""What a trace must be before it is replayed: a file may have been cut, edited or written by something else.

The engine's own traces are not checked: they are right by construction, and its tests replay them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from servelab.trace.event import Draft, Event, Release, Reserve, Verify

if TYPE_CHECKING:
    from servelab.trace.record import RequestRecord, Trace

KV_CACHES = ("paged", "contiguous")


def check_trace(trace: Trace) -> None:
    """Raise ValueError that names the place, what was expected and what came."""
    if trace.kv_cache not in KV_CACHES:
        raise ValueError(f"expected kv_cache in {KV_CACHES}, got {trace.kv_cache!r}")
    for name in ("num_blocks", "block_size", "max_num_seqs"):
        _check_int(name, getattr(trace, name), low=1)
    _check_int("kv_bytes_per_token", trace.kv_bytes_per_token)
    for name in ("scheduling", "model", "machine"):
        _check_text(name, getattr(trace, name))
    for index, request in enumerate(trace.requests):
        _check_request(f"request {index}", request)
    for number, step in enumerate(trace.steps):
        if type(step.duration_s) not in (int, float) or not step.duration_s >= 0:
            raise ValueError(f"expected a duration in seconds in step {number}, got {step.duration_s!r}")
        for event in step.events:
            _check_event(trace, f"step {number}, event {event.kind}", event)
    replayed = 0
    try:
        for _state in trace.states("end"):
            replayed += 1
    except (ValueError, IndexError, KeyError) as error:
        place = f"in or after step {max(0, replayed - 1)}"
        raise ValueError(f"expected events that follow from the ones before them, got {place}: {error}") from None


def _check_request(place: str, request: RequestRecord) -> None:
    _check_text(f"{place}: request_id", request.request_id)
    _check_int(f"{place}: max_tokens", request.max_tokens)
    for name in ("prompt_token_ids", "output_token_ids"):
        for token_id in _check_list(f"{place}: {name}", getattr(request, name)):
            _check_int(f"{place}: {name}", token_id)
    for text in _check_list(f"{place}: token_texts", request.token_texts):
        _check_text(f"{place}: token_texts", text)


def _check_event(trace: Trace, place: str, event: Event) -> None:
    for field in fields(event):
        name, value = f"{place}: {field.name}", getattr(event, field.name)
        match field.name:
            case "rows":
                _check_rows(trace, place, value)
            case "reason":
                _check_text(name, value)
            case "request" | "parent":
                _check_int(name, value, high=len(trace.requests) - 1)
            case "block" | "source":
                _check_int(name, value, high=trace.num_blocks - 1)
            case "token_ids" | "p" | "q" | "u":
                _check_numbers(name, value, whole=field.name == "token_ids")
            case _:
                _check_int(name, value)
    match event:
        case Reserve(_, start, num_slots) | Release(_, start, num_slots):
            _check_int(f"{place}: the end of the slots", start + num_slots, high=trace.num_slots)
        case Draft(_, token_ids, q):
            _check_same_length(place, token_ids, q)
        case Verify(_, token_ids, p, u, num_accepted):
            _check_same_length(place, token_ids, p, u)
            _check_int(f"{place}: num_accepted", num_accepted, high=len(token_ids))
        case _:
            pass


def _check_numbers(name: str, values: Any, whole: bool) -> None:
    """Token ids (whole), or probabilities."""
    if type(values) is not tuple:
        raise ValueError(f"expected {name} to be a list, got {values!r:.60}")
    for value in values:
        if whole:
            _check_int(name, value)
        elif type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(f"expected {name} in 0..1, got {value!r:.60}")


def _check_same_length(place: str, *lists: tuple[float, ...]) -> None:
    if len({len(values) for values in lists}) != 1:
        raise ValueError(f"expected one value for each draft token in {place}, got {[len(v) for v in lists]}")


def _check_rows(trace: Trace, place: str, rows: Any) -> None:
    if type(rows) is not tuple or not all(type(row) is tuple and len(row) == 2 for row in rows):
        raise ValueError(f"expected rows [request, tokens] in {place}, got {rows!r:.60}")
    for request, num_tokens in rows:
        _check_int(f"{place}: request", request, high=len(trace.requests) - 1)
        _check_int(f"{place}: tokens", num_tokens, low=1)


def _check_int(name: str, value: Any, low: int = 0, high: int | None = None) -> None:
    if type(value) is not int or value < low or (high is not None and value > high):
        words = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
        raise ValueError(f"expected {name} to be {words}, got {value!r:.60}")


def _check_text(name: str, value: Any) -> None:
    if type(value) is not str:
        raise ValueError(f"expected {name} to be text, got {value!r:.60}")


def _check_list(name: str, value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"expected {name} to be a list, got {value!r:.60}")
    return value
