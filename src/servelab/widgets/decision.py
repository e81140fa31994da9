"""The decisions that "what next?" asks for, read from the trace: the question, the right answer and the reason.

Pure functions of a trace; the widgets ask them and show what they say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from servelab.costs import holes
from servelab.figures.frame import request_label
from servelab.trace import Admit, Allocate, Hit, Reserve, Trace, Wait
from servelab.translation import _


@dataclass(frozen=True, slots=True)
class Decision:
    """A moment at which the engine chose, before `step` is computed.

    choices: (id, label); empty where the learner points at the picture instead, at a mark of `pointing`
    ("block"). answer: the id that the trace holds. reasons: id -> what is wrong with that choice; `because` says why
    the engine did what it did.
    """

    step: int
    prompt: str
    rule: str
    answer: str
    because: str
    choices: tuple[tuple[str, str], ...] = ()
    pointing: str = ""
    reasons: dict[str, str] = field(default_factory=dict)

    def verdict(self, choice: str) -> tuple[bool, str]:
        """Whether the choice is the trace's, and the reason in one or two sentences."""
        if choice == self.answer:
            return True, _("Right.") + " " + self.because
        reason = self.reasons.get(choice, "")
        return False, " ".join(part for part in (_("Not here."), reason, self.because) if part)


@dataclass(frozen=True, slots=True)
class Admission:
    """What happened to the request that stood first in line: admitted, or refused for memory. Counts are in blocks
    (paged) or slots (contiguous)."""

    request: int
    request_id: str
    admitted: bool
    needed: int
    free: int
    largest: int
    paged: bool

    def because(self) -> str:
        """The reason, from the events."""
        values = {"needed": self.needed, "free": self.free, "largest": self.largest}
        if self.paged:
            if self.admitted:
                return _("Blocks needed: {needed}; free: {free}, wherever they lie.").format(**values)
            return _("Blocks needed: {needed}; free: only {free}.").format(**values)
        if self.admitted:
            return _("Slots in a row needed: {needed}; longest free run: {largest}.").format(**values)
        if self.free >= self.needed:
            return _("Slots in a row needed: {needed}; free: {free}, but the longest run has only {largest}.").format(
                **values
            )
        return _("Slots needed: {needed}; free: only {free}.").format(**values)

    def need(self) -> str:
        if self.paged:
            return _("{count} blocks").format(count=self.needed)
        return _("{count} slots in a row").format(count=self.needed)


def admission(trace: Trace, step: int) -> Admission | None:
    """The first decision about a waiting request in `step`; None where memory decided nothing."""
    if not 0 <= step < len(trace.steps):
        return None
    events = trace.steps[step].events
    for position, event in enumerate(events):
        if isinstance(event, Admit):
            return _admitted(trace, step, position, event.request)
        if isinstance(event, Wait):
            if event.reason != "no_memory":
                return None
            name = request_label(trace.requests[event.request].request_id)
            paged = trace.kv_cache == "paged"
            return Admission(event.request, name, False, event.needed, event.free, event.largest, paged)
    return None


def admission_steps(traces: Sequence[Trace]) -> list[int]:
    """Steps at which it is worth asking whether the first in line is admitted.

    Each first refusal of a request, and admissions while more than 40 % of the pool has an owner.
    """
    steps = set()
    for trace in traces:
        refused: set[int] = set()
        for step in range(len(trace.steps)):
            decision = admission(trace, step)
            if decision is None:
                continue
            if not decision.admitted and decision.request not in refused:
                refused.add(decision.request)
                steps.add(step)
            elif decision.admitted and decision.free < 0.6 * trace.num_blocks:
                steps.add(step)
    return sorted(steps)


def admission_decision(traces: Sequence[Trace], names: Sequence[str], step: int) -> Decision | None:
    """Whether the first in line is admitted in `step`: in one pool, or in both when the same request is first."""
    found = [
        (name, decision) for trace, name in zip(traces, names, strict=True) if (decision := admission(trace, step))
    ]
    if not found:
        return None
    if len(found) == 2 and found[0][1].request_id == found[1][1].request_id:
        return _joint_decision(found, step)
    name, first = next((pair for pair in found if not pair[1].admitted), found[0])
    prompt = _("{pool}: {request} is first in line and needs {need}. Is it admitted?")
    return Decision(
        step=step,
        prompt=prompt.format(pool=name, request=first.request_id, need=first.need()),
        rule=_("The first in line is admitted when the pool has what it needs; nobody overtakes it."),
        answer="admit" if first.admitted else "wait",
        because=first.because(),
        choices=(("admit", _("It is admitted")), ("wait", _("It waits"))),
    )


def _joint_decision(found: Sequence[tuple[str, Admission]], step: int) -> Decision:
    (name, first), (other_name, other) = found
    prompt = _(
        "{request} is first in line. It needs {need} ({pool}) or {other_need} ({other_pool}). Where is it admitted?"
    )
    outcome = {(True, True): "both", (True, False): "first", (False, True): "second", (False, False): "none"}
    because = f"{name}: {first.because()} {other_name}: {other.because()}"
    return Decision(
        step=step,
        prompt=prompt.format(
            request=first.request_id, need=first.need(), pool=name, other_need=other.need(), other_pool=other_name
        ),
        rule=_("The first in line is admitted when the pool has what it needs; nobody overtakes it."),
        answer=outcome[first.admitted, other.admitted],
        because=because,
        choices=(
            ("both", _("In both")),
            ("first", _("Only in: {pool}").format(pool=name)),
            ("second", _("Only in: {pool}").format(pool=other_name)),
            ("none", _("In neither")),
        ),
    )


def _admitted(trace: Trace, step: int, position: int, request: int) -> Admission:
    """An admission, with what was free just before it."""
    events = trace.steps[step].events
    paged = trace.kv_cache == "paged"
    state = trace.state_before(step, position)
    own = [event for event in events[position:] if getattr(event, "request", None) == request]
    name = request_label(trace.requests[request].request_id)
    if paged:
        # A block of the prefix cache that nobody owns is taken out of the free ones too.
        hits = sum(isinstance(event, Hit) and event.block in state.free for event in own)
        needed = sum(isinstance(event, Allocate) for event in own) + hits
        return Admission(request, name, True, needed, len(state.free), len(state.free), paged)
    taken = {item.reservation for item in state.requests if item.reservation}
    runs = [length for _start, length in holes(trace.num_blocks, sorted(taken))]
    needed = next((event.num_slots for event in own if isinstance(event, Reserve)), 0)
    return Admission(request, name, True, needed, sum(runs), max(runs, default=0), paged)
