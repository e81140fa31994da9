"""`Trace`: what an engine did, from the first request to the last freed block, as data that can be saved."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from servelab.trace.event import Event, event_from_json
from servelab.trace.form import check_trace
from servelab.trace.replay import Replay, State

FORMAT = "servelab-trace"
VERSION = 2
READABLE = (1, 2)  # version 2 added events and took none away


@dataclass(slots=True)
class RequestRecord:
    """One request: what was asked, what came out.

    token_texts: the text of each token, prompt first, then output; empty strings where a token has no text of
    its own (part of a character). Widgets show it; it is never joined into the answer.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together, as far as the trace goes."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)


@dataclass(slots=True)
class StepRecord:
    """One engine step: its events in order, and how long it took (seconds; 0.0 where nothing was timed)."""

    events: list[Event] = field(default_factory=list)
    duration_s: float = 0.0


@dataclass(slots=True)
class Trace:
    """A replayable record of a run.

    kv_cache: "paged" or "contiguous". A paged pool has `num_blocks` blocks of `block_size` slots; a contiguous
    pool has `num_blocks` = number of slots and `block_size` = 1.
    kv_bytes_per_token: bytes of one slot over all layers, K and V.
    """

    kv_cache: str
    num_blocks: int
    block_size: int
    scheduling: str = "continuous"
    max_num_seqs: int = 1
    model: str = ""
    machine: str = ""
    kv_bytes_per_token: int = 0
    requests: list[RequestRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    _replay: Replay | None = field(default=None, repr=False, compare=False)

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    def state_at(self, step: int, moment: str = "computed") -> State:
        """Return the pool, the queues and the token counts at `step` (0-based).

        moment: "scheduled" is after the blocks are handed out and before the rows are computed, "computed" is
        after the rows wrote their keys and values and before finished requests leave, "end" is after they left.
        Raises ValueError when there is no such step or moment.
        """
        return self._replayed().state_at(step, moment)

    def state_before(self, step: int, event: int) -> State:
        """Return what was decided upon when event number `event` (0-based) of `step` came about."""
        return self._replayed().state_before(step, event)

    def states(self, moment: str = "computed") -> Iterator[State]:
        """The state at `moment` of every step in turn. The same object each time: read it, do not keep it."""
        return Replay(self).states(moment)

    def _replayed(self) -> Replay:
        if self._replay is None:
            self._replay = Replay(self)
        return self._replay

    def index_of(self, request_id: str) -> int:
        """The index of a request in `requests`, the latest one where an id was used again.

        Raises ValueError that lists known ids.
        """
        for index in reversed(range(len(self.requests))):
            if self.requests[index].request_id == request_id:
                return index
        known = ", ".join(request.request_id for request in self.requests[:8])
        raise ValueError(f"expected a request id of this trace ({known}, ...), got {request_id!r}")

    def to_json(self) -> dict[str, Any]:
        """The trace as plain JSON values, format and version first."""
        header = {name: getattr(self, name) for name in self.__slots__ if name not in ("requests", "steps", "_replay")}
        return {
            "format": FORMAT,
            "version": VERSION,
            **header,
            "requests": [asdict(request) for request in self.requests],
            "steps": [[round(step.duration_s, 6), [event.to_json() for event in step.events]] for step in self.steps],
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace as JSON. The file appears whole or not at all."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
        partial.replace(target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read a saved trace. Raises ValueError for another format, another version or a cut-off file."""
        content = Path(path).read_bytes()
        try:
            data = json.loads(content.decode("utf-8"))
        except (UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"expected a JSON trace in {path}, got something else: {error}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"expected a whole JSON trace in {path}, got a file that ends early: {error}") from None
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: Any) -> "Trace":
        """Rebuild a trace from `to_json`. Raises ValueError that names what was expected and what came."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"expected JSON with format {FORMAT!r}, got {str(data)[:60]!r}")
        if data.get("version") not in READABLE:
            raise ValueError(f"expected a trace of a version in {READABLE}, got version {data.get('version')!r}")
        header = {key: value for key, value in data.items() if key not in ("format", "version", "requests", "steps")}
        try:
            if "_replay" in header:
                raise TypeError("_replay, which no file has")
            requests = [RequestRecord(**request) for request in data["requests"]]
            steps = [
                StepRecord([event_from_json(event) for event in events], duration_s)
                for duration_s, events in data["steps"]
            ]
            trace = cls(**header, requests=requests, steps=steps)
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the fields of a version {VERSION} trace, got: {error}") from None
        check_trace(trace)
        return trace


def token_texts(pieces: Sequence[str]) -> list[str]:
    """Token texts as a widget may show them: the replacement character becomes an empty string."""
    return ["" if "\ufffd" in piece else piece for piece in pieces]
