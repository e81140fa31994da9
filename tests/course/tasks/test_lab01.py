"""Lab 01's judges against brute force and against the numbers of `servelab.costs`."""

import pytest

from servelab.costs import MODEL_SPECS, kv_cache_bytes_per_token, kv_weight_crossover_tokens, weight_bytes
from servelab.course.assignment import run_assignment_task
from servelab.course.tasks import tasks
from servelab.course.tasks.lab01 import CROSSOVER, KV_BYTES, PLAN, constants
from servelab.course.tasks.lab01.plan import draw_card, most_seats
from servelab.course.tasks.lab01.reading import choose_weight_bytes, read
from servelab.course.tasks.workload import record


def test_points_and_kinds():
    lab = tasks("lab01")
    assert {one.kind for one in lab} == {"fill", "debug", "design", "measure"}
    assert sum(one.points for one in lab if one.kind != "fill") >= 0.4 * sum(one.points for one in lab)


def test_first_cases_are_smollm2():
    spec = MODEL_SPECS["SmolLM2-135M"]
    assert KV_BYTES.visible(5)[0].expected == kv_cache_bytes_per_token(spec)
    first = CROSSOVER.visible(5)[0]
    assert first.arguments[:2] == (weight_bytes(spec), kv_cache_bytes_per_token(spec))
    assert first.expected == kv_weight_crossover_tokens(spec) + 1


@pytest.mark.parametrize("seed", range(20))
def test_most_seats_is_what_brute_force_finds(seed):
    """Try every number of seats with the smallest pool that holds them."""
    card = draw_card(seed)
    tokens, size, kv_bytes = (
        card["prompt_tokens"] + card["output_tokens"],
        card["block_size"],
        card["kv_bytes_per_token"],
    )
    best = 0
    for seats in range(1, 80):
        pool_bytes = seats * -(-tokens // size) * size * kv_bytes
        fits = card["weight_bytes"] + card["reserve_bytes"] + pool_bytes <= card["memory_bytes"]
        if fits and card["weight_bytes"] + seats * tokens * kv_bytes <= card["step_bytes"]:
            best = seats
    assert most_seats(card) == best > 0


def test_memory_binds_some_cards_and_the_step_others():
    by_step = 0
    for seed in range(20):
        card = draw_card(seed)
        tokens = card["prompt_tokens"] + card["output_tokens"]
        limit = (card["step_bytes"] - card["weight_bytes"]) // (tokens * card["kv_bytes_per_token"])
        by_step += most_seats(card) == limit
    assert 4 < by_step < 16


def test_several_plans_are_right():
    card = draw_card(10)
    tokens, seats = card["prompt_tokens"] + card["output_tokens"], most_seats(card)
    needed = seats * -(-tokens // card["block_size"])
    for num_blocks in (needed, needed + 1):
        mine = {"num_blocks": num_blocks, "max_model_len": tokens, "max_num_seqs": seats}
        assert run_assignment_task(PLAN, lambda card, mine=mine: mine, 10, 10).passed


@pytest.mark.parametrize("seed", range(4))
def test_crossover_has_the_cause_that_was_asked_for(seed):
    trace = record(constants(seed)["load"])
    for cause in ("arrival", "context", "never"):
        weights = choose_weight_bytes(trace, cause)
        found = read(trace, weights, 256)
        assert found.cause == cause
        assert (found.first_step < 0) == (cause == "never")
        assert found.first_equal_step != found.first_step


def test_written_tokens_leave_out_the_last_output_of_each_request():
    trace = record(constants(3)["load"])
    found = read(trace, 1, 256)
    assert found.written_bytes == 256 * (found.prompt_tokens + found.output_tokens - len(trace["requests"]))
