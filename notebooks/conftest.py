"""What `pytest --nbval-lax --nbval-current-env notebooks` runs under: offline, on a data folder of its own.

The cells run as they do for a learner (live widgets, no pictures made), with the solutions in place.
"""

import os
import tempfile

import pytest

_data = tempfile.TemporaryDirectory(prefix="servelab-data-", ignore_cleanup_errors=True)
os.environ.update(SERVELAB_DATA=_data.name, HF_HUB_OFFLINE="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
os.environ.pop("SERVELAB_EDITION", None)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two notebooks at a time: a thread that waits must not hold a core


def pytest_unconfigure(config: pytest.Config) -> None:
    _data.cleanup()
