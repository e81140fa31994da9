"""One factor, found again: it is fitted on one load, and does not depend on what it was before."""

import dataclasses

import pytest

from servelab.simulate import (
    ClosedLoop,
    Drafting,
    arrive_at_once,
    arrive_at_rate,
    equal_lengths,
    fit_efficiency,
    simulate,
)

LOADS = {"at once": arrive_at_once(equal_lengths(12, 9, 14)), "closed": ClosedLoop(equal_lengths(12, 9, 14), 3)}


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("drafting", [None, Drafting(2, 0.6, 0.2)])
@pytest.mark.parametrize("efficiency", [0.37, 1.2])
def test_the_factor_that_was_there_is_found(deployment, make_config, name, drafting, efficiency):
    truth = dataclasses.replace(deployment, efficiency=efficiency, overhead_s=0.003)
    config = make_config(num_blocks=20)
    measured_s = simulate(truth, config, LOADS[name], drafting=drafting, seed=4).seconds
    guess = dataclasses.replace(truth, efficiency=0.9)
    fitted = fit_efficiency(guess, config, LOADS[name], measured_s, drafting=drafting, seed=4)
    assert fitted.efficiency == pytest.approx(efficiency)
    assert dataclasses.replace(fitted, efficiency=efficiency) == truth


def test_a_load_with_times_of_its_own_is_refused(deployment, make_config):
    for load in (arrive_at_rate(equal_lengths(5, 4, 4), 2.0), ClosedLoop(equal_lengths(5, 4, 4), 2, think_s=1.0)):
        with pytest.raises(ValueError, match="expected a load whose requests all come at once"):
            fit_efficiency(deployment, make_config(), load, 1.0)


def test_a_time_below_the_overhead_is_refused(deployment, make_config):
    slow = dataclasses.replace(deployment, overhead_s=1.0)
    load = arrive_at_once(equal_lengths(1, 4, 4))
    with pytest.raises(ValueError, match=r"above the overhead of 4 steps \(4 s\), got 3.5"):
        fit_efficiency(slow, make_config(), load, 3.5)
