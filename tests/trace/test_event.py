"""Events: to JSON and back, and what is refused."""

import json

import pytest

from servelab.trace.event import EVENT_KINDS, Admit, Emit, Finish, Schedule, Wait, event_from_json


@pytest.mark.parametrize(
    "event",
    [Admit(3), Wait(1, "no_memory", 9, 19, 7), Schedule(((0, 7), (1, 1))), Emit(()), Finish(2, "length")],
)
def test_an_event_survives_json(event):
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


def test_every_kind_has_its_own_name():
    assert len(EVENT_KINDS) == 11
    assert all(event_type.kind == kind for kind, event_type in EVENT_KINDS.items())


@pytest.mark.parametrize("value", [None, [], ["explode", 1], {"kind": "admit"}])
def test_something_else_is_refused(value):
    with pytest.raises(ValueError, match=r"expected an event \[kind, ...\] with kind in"):
        event_from_json(value)


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match=r"expected 'free' with the fields \['request', 'block'\], got 1 values"):
        event_from_json(["free", 1])
