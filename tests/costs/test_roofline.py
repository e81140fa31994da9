"""The roofline: which ceiling holds where."""

import math

import pytest

from servelab.costs import Roofline


def test_both_sides_of_the_ridge():
    machine = Roofline(flops_per_s=100.0, bandwidth_bytes_per_s=20.0)
    assert machine.ridge_point == 5
    assert machine.attainable_flops_per_s(2) == 40
    assert machine.attainable_flops_per_s(50) == 100
    assert machine.bound(4.9) == "memory"
    assert machine.bound(5) == "compute"


def test_the_slower_of_both_decides_the_time():
    machine = Roofline(flops_per_s=100.0, bandwidth_bytes_per_s=20.0)
    assert machine.seconds(flops=100, num_bytes=40) == 2
    assert machine.seconds(flops=300, num_bytes=40) == 3


def test_a_ceiling_must_be_positive():
    with pytest.raises(ValueError, match="positive ceilings, got 0"):
        Roofline(0, 1)


def test_a_ceiling_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="expected positive ceilings, got nan"):
        Roofline(math.nan, 1.0)
