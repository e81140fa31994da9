"""Files of the right format and version that are still no trace are refused when they are loaded, not when drawn."""

import copy
import json
import math

import pytest

from servelab.engine import allocation_trace
from servelab.trace import Trace

OPERATIONS = [("place", "A", 7), ("place", "B", 2), ("append", "A", 1), ("free", "A")]


def load_with(tmp_path, trace, path, value):
    """Save the trace with one value replaced, and load it."""
    data = trace.to_json()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(data))
    return Trace.load(file)


@pytest.fixture
def trace():
    return allocation_trace(OPERATIONS, num_slots=16, block_size=4)


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_num_seqs", "kv_bytes_per_token"])
@pytest.mark.parametrize("value", [None, "4", -1, 1.5, math.nan, True, []])
def test_sizes_are_integers(tmp_path, trace, name, value):
    with pytest.raises(ValueError, match=f"expected {name} to be an integer >= [01], got"):
        load_with(tmp_path, trace, [name], value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["kv_cache"], "pages", r"expected kv_cache in \('paged', 'contiguous'\), got 'pages'"),
        (["model"], 5, "expected model to be text, got 5"),
        (["_replay"], 1, "expected the fields of a version 2 trace, got: _replay"),
        (["steps"], [5], "expected the fields of a version 2 trace"),
        (["steps", 1, 0], "fast", "expected a duration in seconds in step 1, got 'fast'"),
        (["steps", 1, 0], -1.0, r"expected a duration in seconds in step 1, got -1\.0"),
        (["requests", 0, "request_id"], 5, "expected request 0: request_id to be text, got 5"),
        (["requests", 0, "prompt_token_ids"], "abc", "expected request 0: prompt_token_ids to be a list, got 'abc'"),
        (["requests", 1, "prompt_token_ids"], [None], "request 1: prompt_token_ids to be an integer >= 0, got None"),
        (["requests", 1, "token_texts"], [None], "expected request 1: token_texts to be text, got None"),
    ],
)
def test_the_header_and_the_requests_have_their_types(tmp_path, trace, path, value, message):
    with pytest.raises(ValueError, match=message):
        load_with(tmp_path, trace, path, value)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (["arrive", 9], r"step 2, event arrive: request to be an integer in 0\.\.1, got 9"),
        (["arrive", -1], r"step 2, event arrive: request to be an integer in 0\.\.1, got -1"),
        (["allocate", 0, 2, 99], r"step 2, event allocate: block to be an integer in 0\.\.3, got 99"),
        (["reserve", 0, 8, 99], r"step 2, event reserve: the end of the slots to be an integer in 0\.\.16, got 107"),
        (["schedule", 5], "expected rows .* in step 2, event schedule, got 5"),
        (["schedule", [[0, -5]]], "step 2, event schedule: tokens to be an integer >= 1, got -5"),
        (["emit", [[7, 1]]], r"step 2, event emit: request to be an integer in 0\.\.1, got 7"),
        (["finish", 0, 5], "step 2, event finish: reason to be text, got 5"),
        (["free", 0, 3], "expected events that follow from the ones before them, got in or after step 1"),
        (["allocate", 0, 5, 3], "expected events that follow from the ones before them, got in or after step 1"),
        (["admit", 1], "expected events that follow from the ones before them, got in or after step 1"),
        (["allocate", 0, 2, 1], r"got in or after step 1: expected a free block .* got block 1"),
        (["hit", 0, 2, 3], r"got in or after step 1: expected a hit on a block of the prefix cache, got block 3"),
        (["hit", 0, 2, 4], r"event hit: block to be an integer in 0\.\.3, got 4"),
        (["cache", 0, 0, 4], r"event cache: block to be an integer in 0\.\.3, got 4"),
        (["evict", 3], "expected events that follow from the ones before them, got in or after step 1"),
        (["trim", 0, 0], "got in or after step 1: expected the last block of request 0's table, got block 0"),
        (["trim", 0, 4], r"event trim: block to be an integer in 0\.\.3, got 4"),
        (["evict", 4], r"event evict: block to be an integer in 0\.\.3, got 4"),
        (["copy", 0, 0, 1, 3], "got in or after step 1: expected block 1 as entry 0 of request 0's table"),
        (["copy", 0, 0, 0, 2], "got in or after step 1: expected a free block .* got block 2"),
        (["copy", 0, 0, 9, 3], r"event copy: source to be an integer in 0\.\.3, got 9"),
        (["fork", 1, 2], r"event fork: parent to be an integer in 0\.\.1, got 2"),
        (["draft", 0, [1, 2], [1.0]], r"expected one value for each draft token in step 2, event draft, got \[2, 1\]"),
        (["draft", 0, [1], [1.5]], r"event draft: q in 0\.\.1, got 1\.5"),
        (["draft", 0, [1.5], [1.0]], "event draft: token_ids to be an integer >= 0, got 1.5"),
        (["draft", 0, 1, [1.0]], "event draft: token_ids to be a list, got 1"),
        (["verify", 0, [1], [0.5], [], 0], r"for each draft token in step 2, event verify, got \[1, 1, 0\]"),
        (["verify", 0, [1], [0.5], ["0"], 0], r"event verify: u in 0\.\.1, got '0'"),
        (["verify", 0, [1], [0.5], [0.5], 2], r"event verify: num_accepted to be an integer in 0\.\.1, got 2"),
        (["traffic", 1, -2, 3], "event traffic: kv_read_bytes to be an integer >= 0, got -2"),
    ],
)
def test_an_event_that_cannot_have_happened_is_refused(tmp_path, trace, event, message):
    with pytest.raises(ValueError, match=message):
        load_with(tmp_path, trace, ["steps", 2, 1], [event])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_text_or_no_trace_at_all_is_refused(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected a JSON trace in"):
        Trace.load(path)


def test_a_whole_file_is_taken(tmp_path, trace):
    before = copy.deepcopy(trace.to_json())
    assert load_with(tmp_path, trace, ["model"], "another").to_json() == before | {"model": "another"}
