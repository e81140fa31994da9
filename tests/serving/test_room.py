"""The room as a whole: a load needs neither the server's packages nor torch."""

import subprocess
import sys

import pytest

from servelab import serving


def test_every_name_is_there_and_no_other():
    for name in serving.__all__:
        assert getattr(serving, name) is not None
    assert set(serving.PLACES) == set(serving.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = serving.nothing


@pytest.mark.parametrize("name", ["run_load", "Load", "Target", "Watcher", "VLLMServer"])
def test_what_looks_from_outside_loads_nothing_heavy(name):
    code = (
        f"import sys; from servelab.serving import {name}; print({{'torch', 'fastapi', 'plotly'}} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
