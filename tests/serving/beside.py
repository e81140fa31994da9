"""The environments beside the course's, for tests of the real tools: without one, a skip, or in CI a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servelab.serving.environment import EnvironmentMissing, find_python

REQUIRED = "SERVELAB_REQUIRE_ENVIRONMENTS"
# Whoever was started in the background by a shell ignores Ctrl-C, and so would all that it starts.
CODE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from servelab.cli import main; main()"
COMMAND = [sys.executable, "-c", CODE]


def need(folder: str, tool: str, target: str) -> Path:
    """Its Python. Without one the test is skipped, or fails where `SERVELAB_REQUIRE_ENVIRONMENTS` is set."""
    try:
        return find_python(folder, tool, target)
    except EnvironmentMissing as missing:
        if os.environ.get(REQUIRED):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def servelab(*words: str, **options) -> "subprocess.Popen[str]":
    """The command line in a process of its own."""
    return subprocess.Popen([*COMMAND, *words], text=True, **options)
