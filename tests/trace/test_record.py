"""`Trace`: saved and loaded, versions, and files that are not traces."""

import json

import pytest

from servelab.engine import allocation_trace
from servelab.trace import Trace, token_texts

OPERATIONS = [("place", "A", 7), ("place", "B", 2), ("append", "A", 2), ("free", "B"), ("place", "C", 30)]


@pytest.fixture
def trace():
    return allocation_trace(OPERATIONS, num_slots=28, block_size=4)


def test_load_gives_back_what_was_saved(trace, tmp_path):
    path = trace.save(tmp_path / "trace.json")
    assert Trace.load(path) == trace
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def test_a_loaded_trace_replays_alike(trace, tmp_path):
    loaded = Trace.load(trace.save(tmp_path / "trace.json"))
    for step in range(len(trace.steps)):
        assert loaded.state_at(step) == trace.state_at(step)


def test_a_replayed_trace_still_equals_its_copy(trace, tmp_path):
    trace.state_at(0)
    assert Trace.load(trace.save(tmp_path / "trace.json")) == trace


def test_a_cut_off_file_is_named(trace, tmp_path):
    path = trace.save(tmp_path / "trace.json")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match=r"expected a whole JSON trace in .*trace.json, got a file that ends early"):
        Trace.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected JSON with format 'servelab-trace'"),
        ({"version": 99}, r"expected a trace of a version in \(1, 2\), got version 99"),
        ({"surprise": 1}, "expected the fields of a version 2 trace, got: .*surprise"),
        ({"requests": [{"who": 1}]}, "expected the fields of a version 2 trace, got: .*who"),
    ],
)
def test_another_file_is_refused(trace, tmp_path, change, message):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace.to_json() | change))
    with pytest.raises(ValueError, match=message):
        Trace.load(path)


def test_a_trace_of_the_first_version_can_still_be_read(trace, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace.to_json() | {"version": 1}))
    assert Trace.load(path) == trace
    assert trace.to_json()["version"] == 2


def test_requests_are_found_by_id_and_the_latest_wins(trace):
    assert trace.index_of("B") == 1
    trace.requests[2].request_id = "B"
    assert trace.index_of("B") == 2
    with pytest.raises(ValueError, match=r"expected a request id of this trace \(A, B, B, ...\), got 'Z'"):
        trace.index_of("Z")


def test_lengths_of_a_request(trace):
    request = trace.requests[0]
    assert (request.num_prompt_tokens, request.num_output_tokens, request.num_tokens) == (7, 2, 9)
    assert request.token_texts == [f"A{number}" for number in range(1, 10)]


def test_parts_of_characters_have_no_text():
    assert token_texts(["a", "\ufffd", "b\ufffd"]) == ["a", "", ""]
