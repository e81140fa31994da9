"""Both backends of the CPU for every operator's test."""

import pytest

from servelab.ops import backend


@pytest.fixture(params=["compiled", "plain"])
def cpu_backend(request, monkeypatch):
    """Runs a test with compiled kernels, where this machine has them, and with PyTorch alone."""
    if request.param == "compiled" and backend.cannot_compile() is not None:
        pytest.skip(f"no compiled kernels here: {backend.cannot_compile()}")
    monkeypatch.setattr(backend, "choice", request.param)
    return request.param
