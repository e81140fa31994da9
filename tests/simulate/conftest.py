"""A toy on paper beside the toy in the engine, and a load on both."""

from collections.abc import Callable

import pytest

from servelab.costs import Roofline
from servelab.engine import Engine, EngineConfig
from servelab.sampling import SamplingParams
from servelab.simulate import Deployment


@pytest.fixture
def deployment(toy_model) -> Deployment:
    """The toy model on a machine where a step takes some milliseconds."""
    return Deployment(
        spec=toy_model.spec, roofline=Roofline(1e8, 1e7, "paper"), bytes_per_parameter=4, bytes_per_element=4
    )


@pytest.fixture
def make_config() -> Callable[..., EngineConfig]:
    """64 blocks of 4 slots, nothing shared between prompts."""

    def make(**values) -> EngineConfig:
        return EngineConfig(**{"num_blocks": 64, "block_size": 4, "prefix_caching": False} | values)

    return make


@pytest.fixture
def serve(toy_model) -> Callable[..., Engine]:
    """Serve arrivals, all at once, with the real engine."""

    def run(config: EngineConfig, arrivals) -> Engine:
        engine = Engine(toy_model, config)
        for number, arrival in enumerate(arrivals):
            prompt = [(number * 7 + position) % 250 for position in range(arrival.prompt_tokens)]
            engine.add_request(prompt, SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True))
        while engine.has_unfinished():
            engine.step()
        return engine

    return run
