"""What happened, step by step: plain records that the engine writes and the widgets replay."""

from servelab.trace.event import (
    Admit,
    Allocate,
    Arrive,
    Emit,
    Event,
    Finish,
    Free,
    Preempt,
    Release,
    Reserve,
    Schedule,
    Wait,
)
from servelab.trace.occupancy import Slot, Waste, occupancy, waste
from servelab.trace.record import RequestRecord, StepRecord, Trace, token_texts
from servelab.trace.replay import RequestState, State

__all__ = [
    "Admit",
    "Allocate",
    "Arrive",
    "Emit",
    "Event",
    "Finish",
    "Free",
    "Preempt",
    "Release",
    "RequestRecord",
    "RequestState",
    "Reserve",
    "Schedule",
    "Slot",
    "State",
    "StepRecord",
    "Trace",
    "Wait",
    "Waste",
    "occupancy",
    "token_texts",
    "waste",
]
