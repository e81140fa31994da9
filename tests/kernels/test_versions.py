"""The kernels, and what watches and compiles them, work with the oldest and the newest Triton that is allowed.

The version that is installed is tested by everything else; GPU machines often have the oldest.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

VERSIONS = ("3.6.0", "3.9.0")
ROOM = Path(__file__).parent
TESTS = ("inspect", "test_paged_attention.py", "test_quantize_kv.py", "test_rejection_sample.py")
OFFLINE = re.compile(r"Failed to establish|Name or service|Temporary failure", re.I)
UNKNOWN = "No matching distribution"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_with_another_triton(version, tmp_path):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton for this system")
    if importlib.metadata.version("triton") == version:
        pytest.skip("it is the installed one, which all other tests run with")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    installed = subprocess.run([*pip, f"triton=={version}"], capture_output=True, text=True)
    if UNKNOWN in installed.stderr:
        pytest.skip(f"the package registry has no Triton {version}")
    if installed.returncode and OFFLINE.search(installed.stderr) and not os.environ.get("SERVELAB_REQUIRE_NETWORK"):
        pytest.skip(f"Triton {version} cannot be fetched: {installed.stderr.splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found = "import triton; print(triton.__version__)"
    assert run([sys.executable, "-c", found], environment).stdout.strip() == version
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    result = run([*command, *(str(ROOM / test) for test in TESTS)], environment)
    assert result.returncode == 0, result.stdout[-4000:]
    assert re.search(r"^\d{3} passed", result.stdout, re.M), result.stdout[-1000:]


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True)
