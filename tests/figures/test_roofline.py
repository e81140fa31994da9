"""Rooflines with points on them."""

import pytest

from servelab.costs import GPU_SPECS, Roofline
from servelab.figures import roofline


def test_lines_bend_at_the_ridge():
    machine = GPU_SPECS["H100 SXM"].roofline()
    figure = roofline([machine, Roofline(1e11, 1e10, "laptop")], {"decode": (1, 9e9)})
    first, second, point = figure.data
    assert first.x[1] == machine.ridge_point
    assert first.y[1] == first.y[2] == machine.flops_per_s
    assert "ridge at 10 FLOPs per byte" in second.name
    assert (point.x[0], point.y[0]) == (1, 9e9)


def test_bad_input():
    with pytest.raises(ValueError, match="at least one machine"):
        roofline([])
    with pytest.raises(ValueError, match="positive points"):
        roofline([Roofline(1, 1)], {"a": (0, 1)})
