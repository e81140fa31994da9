"""`fit_efficiency`: the one number of a `Deployment` that no datasheet has."""

import dataclasses
from collections.abc import Iterable

from servelab.engine import EngineConfig
from servelab.simulate.deployment import Deployment
from servelab.simulate.load import Arrival, ClosedLoop
from servelab.simulate.simulator import simulate
from servelab.simulate.speculation import Drafting


def fit_efficiency(
    deployment: Deployment,
    config: EngineConfig,
    load: Iterable[Arrival] | ClosedLoop,
    measured_s: float,
    *,
    drafting: Drafting | None = None,
    seed: int = 0,
) -> Deployment:
    """The deployment with the efficiency at which the simulated load takes exactly `measured_s` seconds.

    Its `efficiency` is not looked at; the rest is held. The load may have no time of its own, so all come at once or
    in a closed loop without thinking: then who runs when does not depend on how long a step takes, and the answer is
    one division. Raises ValueError for another load, or when the overhead alone takes longer than was measured.
    """
    if isinstance(load, ClosedLoop):
        times = {load.think_s}
    else:
        load = list(load)
        times = {arrival.time_s for arrival in load}
    if len(times) > 1 or (isinstance(load, ClosedLoop) and load.think_s):
        raise ValueError("expected a load whose requests all come at once, got one with times of its own")
    at_the_roof = dataclasses.replace(deployment, efficiency=1.0, overhead_s=0.0)
    quiet = dataclasses.replace(config, record_trace=False)
    ideal = simulate(at_the_roof, quiet, load, drafting=drafting, seed=seed)
    alone = dataclasses.replace(deployment, efficiency=1.0)
    overhead_s = simulate(alone, quiet, load, drafting=drafting, seed=seed).seconds - ideal.seconds
    if not measured_s > overhead_s:
        raise ValueError(
            f"expected measured_s above the overhead of {ideal.num_steps} steps ({overhead_s:.3g} s), got {measured_s}"
        )
    return dataclasses.replace(deployment, efficiency=ideal.seconds / (measured_s - overhead_s))
