"""The simulator beside the engine in a tiny form: what is compared is there, and preemptions agree exactly."""

import pytest

from benchmarks.report import Report
from benchmarks.section import simulate
from benchmarks.section.simulate import Load, at_once, config, default_loads, off, serve
from benchmarks.suite import FOLDER
from servelab.costs import workload
from servelab.simulate import Arrival, arrive_at_once, arrive_at_rate


@pytest.fixture
def loads():
    pool = arrive_at_once(workload(12, mean_tokens=30, max_tokens=100, seed=1))
    rate = arrive_at_rate(workload(5, mean_tokens=30, max_tokens=100, seed=2), 50.0)
    return [
        Load("fitted", at_once(6, 16, 12), config(max_num_seqs=4)),
        Load("a small pool", pool, config(num_blocks=8)),
        Load("Poisson", rate, config()),
    ]


def test_engine_and_simulator_side_by_side(toy_bench, loads):
    result = simulate.run(toy_bench, loads)
    for load in loads:
        for name in ("output tokens", "mean time to first token", "preemptions"):
            engine = result.find(name, load=load.name, by="engine")
            assert len(engine.samples) == toy_bench.rounds
            assert result.find(name, load=load.name, by="engine, best round").median in engine.samples
            assert result.find(name, load=load.name, by="simulator").median >= 0
    pool = {by: result.find("preemptions", load="a small pool", by=by).median for by in ("engine", "simulator")}
    assert pool["engine"] == pool["simulator"] > 0
    fitted = result.find("output tokens, simulated against real", load="fitted", by="simulator")
    assert fitted.median == pytest.approx(1.0)
    assert result.settings["efficiency"] > 0
    assert result.settings["bytes_per_element"] == 4
    names = [target.name for target in result.targets]
    assert len(names) == 6
    assert not any("fitted" in name for name in names)
    assert "preemptions, a small pool: off by" in names


def test_time_to_first_token_counts_from_the_arrival(toy_bench, loads):
    """A request that comes while a step runs waits from when it came, not from when it was noticed."""
    outcome = serve(toy_bench.model, Load("late", [Arrival(0.05, 8, 4), Arrival(0.0501, 8, 4)], config()))
    assert outcome.ttft_ms > 0
    assert outcome.seconds >= outcome.busy_s * 0.9
    assert outcome.tokens_per_s == pytest.approx(8 / outcome.seconds)


def test_the_loads_differ_and_one_of_them_preempts():
    first, *others = default_loads()
    assert {arrival.time_s for arrival in first.arrivals} == {0.0}
    assert len(others) >= 3
    assert any(load.config.num_blocks < first.config.num_blocks for load in others)
    assert any(load.arrivals[-1].time_s > 0 for load in others)
    assert all(len(load.arrivals) < 10 for load in default_loads(quick=True))


def test_off_is_a_share_of_what_is_real():
    assert off(12.0, 10.0) == pytest.approx(0.2)
    assert off(8.0, 10.0) == pytest.approx(0.2)
    assert (off(0.0, 0.0), off(3.0, 0.0)) == (0.0, 3.0)


def test_what_the_course_says_of_the_simulator_was_measured():
    """Within 20 % at three loads and more that the factor was not fitted on, one with a pool that preempts."""
    section = Report.load(FOLDER / "simulate.json").sections["loads"]
    loads = {str(measurement.case["load"]) for measurement in section.measurements} - {section.settings["fitted_on"]}
    assert len(loads) >= 3
    assert len(section.targets) == 3 * len(loads)
    assert all(target.is_met and target.bar == 0.2 for target in section.targets)
    preempted = [m.median for m in section.measurements if m.name == "preemptions" and m.case["by"] == "engine"]
    assert max(preempted) > 0
    assert not section.commit.endswith("+")
