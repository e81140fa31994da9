"""Events: to JSON and back, and what is refused."""

import json

import pytest

import servelab.trace
from servelab.trace import (
    Admit,
    Cache,
    Copy,
    Draft,
    Emit,
    Evict,
    Finish,
    Fork,
    Hit,
    Schedule,
    Traffic,
    Trim,
    Verify,
    Wait,
)
from servelab.trace.event import EVENT_KINDS, event_from_json


@pytest.mark.parametrize(
    "event",
    [
        *[Admit(3), Wait(1, "no_memory", 9, 19, 7), Schedule(((0, 7), (1, 1))), Emit(()), Finish(2, "length")],
        *[Hit(0, 1, 5), Cache(0, 1, 5), Evict(5), Fork(1, 0), Copy(1, 0, 5, 6), Traffic(10, 20, 30), Trim(0, 4)],
        *[Draft(0, (7, 8), (0.5, 1.0)), Draft(0, (), ()), Verify(0, (7, 8), (0.25, 0.0), (0.1, 0.75), 1)],
    ],
)
def test_an_event_survives_json(event):
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


def test_every_kind_has_its_own_name():
    exported = {getattr(servelab.trace, name) for name in servelab.trace.__all__}
    assert set(EVENT_KINDS.values()) == {
        item for item in exported if hasattr(item, "kind") and hasattr(item, "to_json")
    }
    assert all(event_type.kind == kind for kind, event_type in EVENT_KINDS.items())


@pytest.mark.parametrize("value", [None, [], ["explode", 1], {"kind": "admit"}])
def test_something_else_is_refused(value):
    with pytest.raises(ValueError, match=r"expected an event \[kind, ...\] with kind in"):
        event_from_json(value)


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match=r"expected 'free' with the fields \['request', 'block'\], got 1 values"):
        event_from_json(["free", 1])
