"""Time on paper, what is refused, traces that play and can be kept, and ten thousand requests."""

import dataclasses
import itertools
import time

import pytest

from servelab.costs import (
    GPU_SPECS,
    MODEL_SPECS,
    StepWork,
    decode_step_seconds,
    expected_tokens_per_step,
    prefill_seconds,
    workload,
)
from servelab.figures import memory_map_frame, page_table_frame
from servelab.simulate import (
    Arrival,
    Card,
    ClosedLoop,
    Deployment,
    Drafting,
    arrive_at_once,
    arrive_at_rate,
    equal_lengths,
    simulate,
)
from servelab.simulate.simulator import Simulator, step_work
from servelab.trace import Trace
from servelab.widgets import MemoryMapWidget, PageTableWidget


def test_one_request_by_hand(make_config):
    """One prefill and two decode steps of an 8B model, each at the roofline: as `servelab.costs` says."""
    spec, gpu = MODEL_SPECS["Llama-3-8B"], GPU_SPECS["H100 SXM"]
    result = simulate(Deployment(spec=spec, roofline=gpu.roofline()), make_config(), [Arrival(2.0, 100, 3)])
    prefill = prefill_seconds(spec, gpu, 100)
    steps = [decode_step_seconds(spec, gpu, 1, context) for context in (101, 102)]
    (one,) = result.served
    assert one.ttft_s == pytest.approx(prefill)
    assert one.tpot_s == pytest.approx(sum(steps) / 2)
    assert result.seconds == pytest.approx(prefill + sum(steps))
    assert one.finish_s == pytest.approx(2 + result.seconds)
    assert (result.num_steps, result.peak_running, result.num_output_tokens) == (3, 1, 3)
    assert result.output_tokens_per_s == pytest.approx(3 / result.seconds)


def test_efficiency_and_overhead(deployment, make_config):
    arrivals = arrive_at_once(equal_lengths(5, 8, 6))
    ideal = simulate(deployment, make_config(), arrivals)
    half = dataclasses.replace(deployment, efficiency=0.5, overhead_s=0.25)
    slower = simulate(half, make_config(), arrivals)
    assert slower.seconds == pytest.approx(2 * ideal.seconds + 0.25 * ideal.num_steps)
    assert slower.num_steps == ideal.num_steps


def test_a_machine_that_waits_while_it_reads_takes_the_sum(deployment):
    work = StepWork()
    work.add(8, 20)
    apart = dataclasses.replace(deployment, overlap=False)
    longer = deployment.roofline_seconds(work)
    assert longer < apart.roofline_seconds(work) <= 2 * longer


def test_idle_time_is_skipped_and_counts(deployment, make_config):
    result = simulate(deployment, make_config(), [Arrival(1.0, 4, 2), Arrival(501.0, 4, 2)])
    assert 500 < result.seconds < 501
    assert result.served[1].ttft_s == pytest.approx(result.served[0].ttft_s)
    assert result.running.seconds < 1
    assert result.running_when_full.seconds == 0


def test_arrivals_need_no_order(deployment, make_config):
    arrivals = [Arrival(0.2, 4, 2), Arrival(0.0, 8, 2)]
    assert [one.arrival.time_s for one in simulate(deployment, make_config(), arrivals).served] == [0.0, 0.2]


def test_a_closed_loop_never_has_more_users_than_it_says(deployment, make_config):
    load = ClosedLoop(equal_lengths(20, 6, 5), users=3, think_s=0.5)
    result = simulate(deployment, make_config(), load)
    assert len(result.served) == 20
    assert result.peak_running == 3
    for user in range(3):  # all answers are alike, so that the users take turns
        mine = result.served[user::3]
        for before, after in itertools.pairwise(mine):
            assert after.arrival.time_s == pytest.approx(before.finish_s + 0.5)


def test_speculation_brings_what_the_formula_expects(deployment, make_config):
    """1 + a + a^2 + ... tokens a step, and the draft's own steps are paid for."""
    load = arrive_at_once(equal_lengths(8, 5, 240))
    config = make_config(num_blocks=1000)
    plain = simulate(deployment, config, load)
    drafted = simulate(deployment, config, load, drafting=Drafting(3, 0.6), seed=1)
    assert plain.num_steps / drafted.num_steps == pytest.approx(expected_tokens_per_step(0.6, 3), rel=0.15)
    assert drafted.num_output_tokens == plain.num_output_tokens
    dearer = simulate(deployment, config, load, drafting=Drafting(3, 0.6, draft_cost=1.0), seed=1)
    assert dearer.num_steps == drafted.num_steps
    assert dearer.seconds > drafted.seconds
    assert simulate(deployment, config, load, drafting=Drafting(3, 0.6), seed=1).seconds == drafted.seconds
    assert simulate(deployment, config, load, drafting=Drafting(3, 0.6), seed=2).seconds != drafted.seconds


def test_a_drafts_own_steps_by_hand(deployment, make_config):
    """Two requests, of which one has room for a single draft token: the longest draft is paid for, behind the longest
    context, in decode steps of one request."""
    arrivals = [Arrival(0.0, 4, 12), Arrival(0.0, 9, 3)]
    free = Simulator(deployment, make_config(), arrivals, drafting=Drafting(3, 0.0))
    dear = Simulator(deployment, make_config(), arrivals, drafting=Drafting(3, 0.0, draft_cost=0.5))
    for one in (free, dear):
        one._let_in()
        one._step()  # both prompts
    before = dear.clock - free.clock
    assert before == 0
    for one in (free, dear):
        one._step()
    alone = StepWork()
    alone.add(1, 9)
    assert dear.clock - free.clock == pytest.approx(3 * 0.5 * deployment.step_seconds(alone))


def test_logits_are_computed_where_a_prompt_ends(deployment, make_config):
    """A chunk before the last has none."""
    chunks = Simulator(deployment, make_config(max_num_batched_tokens=8), [Arrival(0.0, 20, 1)])
    chunks._let_in()
    rows = chunks.scheduler.schedule().rows
    assert step_work(rows) == StepWork(1, 8, 0, 36, 8)
    chunks._advance(rows, {})
    chunks._advance(chunks.scheduler.schedule().rows, {})
    assert step_work(chunks.scheduler.schedule().rows) == StepWork(1, 4, 1, 4 * 16 + 10, 20)


@pytest.mark.parametrize("values", [{"num_blocks": 24}, {"kv_cache": "contiguous", "reserve": "exact"}])
@pytest.mark.parametrize("drafting", [None, Drafting(3, 0.5)])
def test_the_trace_plays_and_can_be_kept(deployment, make_config, tmp_path, values, drafting):
    load = arrive_at_once(workload(20, mean_tokens=24, max_tokens=90, seed=5))
    result = simulate(deployment, make_config(**values), load, drafting=drafting)
    trace = Trace.load(result.trace.save(tmp_path / "trace.json"))  # which replays it from end to end
    assert trace.requests == result.trace.requests
    assert [step.events for step in trace.steps] == [step.events for step in result.trace.steps]
    assert sum(step.duration_s for step in result.trace.steps) == pytest.approx(result.seconds)
    assert trace.machine == "simulated: paper"
    state = trace.state_at(len(trace.steps) - 1, "end")
    assert (list(state.running), list(state.waiting)) == ([], [])
    middle = len(trace.steps) // 2
    assert memory_map_frame(trace, middle).data
    assert MemoryMapWidget(trace).static_figure().data
    if trace.kv_cache == "paged":
        assert page_table_frame(trace, 1, "0").data["block_table"]
        widget = PageTableWidget(trace, "3")
        assert widget.block_table
        assert widget.static_figure().data


def test_nothing_is_written_down_where_no_trace_is_wanted(deployment, make_config):
    load = arrive_at_once(workload(20, mean_tokens=24, max_tokens=90, seed=5))
    quiet = simulate(deployment, make_config(num_blocks=24, record_trace=False), load, drafting=Drafting(2, 0.5))
    loud = simulate(deployment, make_config(num_blocks=24), load, drafting=Drafting(2, 0.5))
    assert quiet.trace is None
    assert quiet.summary() == loud.summary()


def test_a_pool_in_bytes(deployment, make_config):
    per_block = 4 * deployment.kv_bytes_per_token
    load = arrive_at_once(equal_lengths(9, 7, 9))
    by_bytes = simulate(deployment, make_config(num_blocks=None, kv_cache_bytes=20 * per_block + 1), load)
    assert by_bytes.trace.num_blocks == 20
    assert by_bytes.summary() == simulate(deployment, make_config(num_blocks=20), load).summary()


@pytest.mark.parametrize(
    ("values", "arrivals", "sentence"),
    [
        ({}, [], "expected at least one request, got none"),
        ({"num_blocks": None}, [Arrival(0, 1, 1)], "expected num_blocks or kv_cache_bytes, got neither"),
        ({"num_blocks": None, "kv_cache_bytes": 100}, [Arrival(0, 1, 1)], r"kv_cache_bytes >= 1024 \(one block"),
        ({}, [Arrival(0, 0, 1)], "a token of prompt and output each, got Arrival"),
        ({}, [Arrival(0, 1, 0)], "a token of prompt and output each, got Arrival"),
        ({}, [Arrival(-1, 1, 1)], "expected a time of at least 0"),
        ({}, [Arrival(float("nan"), 1, 1)], "expected a time of at least 0"),
        ({}, [Arrival(0, 250, 7)], "expected requests of at most 256 tokens"),
        ({"max_model_len": 20}, [Arrival(0, 10, 11)], "expected requests of at most 20 tokens"),
        ({"max_model_len": 300}, [Arrival(0, 250, 7)], "expected requests of at most 256 tokens"),
        ({"max_model_len": 513}, [Arrival(0, 1, 1)], r"expected max_model_len <= 512 \(the context of random-llama\)"),
        ({"num_blocks": 500}, [Arrival(0, 512, 1)], "expected requests of at most 512 tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_runs(deployment, make_config, values, arrivals, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulate(deployment, make_config(**values), arrivals)


def test_a_request_of_the_loop_that_cannot_fit_is_refused_at_once(deployment, make_config):
    load = ClosedLoop([*equal_lengths(5, 4, 4), *equal_lengths(1, 400, 4)], users=2)
    with pytest.raises(ValueError, match="expected requests of at most 256 tokens"):
        simulate(deployment, make_config(), load)


def test_thousands_of_requests_at_their_own_times():
    """A tenth of ten thousand, in a tenth of a minute: 70B on an H100, a long tail, more than it can serve."""
    card = Card()
    load = arrive_at_rate(workload(1_000, mean_tokens=850, max_tokens=4_096), 2.0)
    begin = time.process_time()
    result = simulate(card.deployment, card.config("paged", 4_096), load)
    assert len(result.served) == 1_000
    assert all(one.ttft_s > 0 and one.finish_s > one.arrival.time_s for one in result.served)
    assert result.num_preemptions > 0
    assert time.process_time() - begin < 30  # a tenth of it is usual; a loaded machine is slower


@pytest.mark.slow
def test_ten_thousand_requests_take_less_than_a_minute():
    card = Card()
    load = arrive_at_rate(workload(10_000, mean_tokens=850, max_tokens=4_096), 2.0)
    begin = time.process_time()
    assert len(simulate(card.deployment, card.config("paged", 4_096), load).served) == 10_000
    assert time.process_time() - begin < 60
