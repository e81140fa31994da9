"""Means and quantiles of what was served."""

import json

import pytest

from servelab.simulate import Arrival, Served, Simulation
from servelab.simulate.result import Crowd, quantile


def test_a_request_of_one_token_has_no_time_per_token():
    assert Served(Arrival(0, 3, 1), first_token_s=2.0, finish_s=2.0).tpot_s is None
    assert Simulation([Served(Arrival(0, 3, 1), 2.0, 2.0)]).mean_tpot_s is None


def test_means_by_hand():
    served = [Served(Arrival(1.0, 3, 5), 2.0, 4.0, 2), Served(Arrival(2.0, 3, 1), 5.0, 5.0, 1)]
    result = Simulation(served, seconds=3.0)
    assert (result.mean_ttft_s, result.mean_tpot_s, result.num_preemptions) == (2.0, 0.5, 3)
    assert (result.num_output_tokens, result.output_tokens_per_s) == (6, 2.0)
    assert [result.ttft_quantile_s(share) for share in (0.5, 0.51, 1)] == [1.0, 3.0, 3.0]
    assert json.loads(json.dumps(result.summary()))["p95_ttft_s"] == 3.0


def test_a_crowd_is_weighed_by_time():
    crowd = Crowd()
    crowd.add(1.0, 2, 200)
    crowd.add(3.0, 6, 3_000)
    assert (crowd.mean_requests, crowd.mean_tokens) == (5.0, 460.0)
    assert (Crowd().mean_requests, Crowd().mean_tokens) == (0.0, 0.0)


@pytest.mark.parametrize("share", [0, -1, 1.01])
def test_a_share_that_is_none(share):
    with pytest.raises(ValueError, match="expected a share above 0, at most 1"):
        quantile([1.0], share)
