"""`benchmarks` is run from the repository's root and not installed: let tests import it from there."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture
def toy_bench():
    from benchmarks.bench import Bench

    return Bench("toy", threads=1, rounds=2)
