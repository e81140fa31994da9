"""Serving on paper: the engine's scheduler and blocks, with step times from a roofline."""

from servelab.simulate.deployment import Deployment
from servelab.simulate.example import Card, long_contexts, one_user, users_on_a_card
from servelab.simulate.fit import fit_efficiency
from servelab.simulate.load import Arrival, ClosedLoop, arrive_at_once, arrive_at_rate, equal_lengths
from servelab.simulate.result import Served, Simulation
from servelab.simulate.simulator import Simulator, simulate
from servelab.simulate.speculation import Drafting

__all__ = [
    "Arrival",
    "Card",
    "ClosedLoop",
    "Deployment",
    "Drafting",
    "Served",
    "Simulation",
    "Simulator",
    "arrive_at_once",
    "arrive_at_rate",
    "equal_lengths",
    "fit_efficiency",
    "long_contexts",
    "one_user",
    "simulate",
    "users_on_a_card",
]
