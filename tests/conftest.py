"""Fixtures that every room shares: the real model, loaded once, and one that is small enough to do anything with."""

import os

import pytest
import torch

from servelab.model import Model
from servelab.model import toy_model as make_toy_model

# The workers of pytest-xdist share the two cores: threads that wait for a core that is taken are far slower than one.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
MODEL_THREADS = int(os.environ.get("OMP_NUM_THREADS") or max(1, 2 // WORKERS))


@pytest.fixture(autouse=True)
def _threads(request):
    """Two for the real model, as the course runs it; one for all else, where waiting for a second one costs more."""
    torch.set_num_threads(MODEL_THREADS if "smollm2" in request.fixturenames else 1)


@pytest.fixture(autouse=True)
def _seed():
    """Random numbers are the same in every run, whichever tests run before."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """SmolLM2-135M-Instruct as every chapter uses it, in float32 on the CPU."""
    from servelab.model import load_model

    return load_model("smollm2-135m", dtype=torch.float32, device="cpu", progress=False)


@pytest.fixture(scope="session")
def toy_model() -> Model:
    """A random Llama of two layers, 4 query heads and 2 KV heads, with one token a byte."""
    return make_toy_model()
