"""What a kernel did is watched where Triton runs, and read where it does not."""

import importlib.util

import pytest
import torch

from servelab.course import watched
from servelab.course.watching import KEEP, RECORDS
from servelab.kernels import silu_and_mul
from servelab.kernels.inspect import observe
from servelab.trace.kernel import KernelRecord


@pytest.fixture
def no_triton(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))


def test_it_is_watched_and_kept_where_somebody_asks(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv(KEEP, str(tmp_path))
    record = watched("99.gate", observe, silu_and_mul, torch.randn(3, 8))
    assert record.kernel == "silu_and_mul"
    assert KernelRecord.load(tmp_path / "99.gate.json") == record


def test_without_triton_it_is_the_recorded_one(no_triton, capsys):
    name = min(path.stem for path in RECORDS.glob("*.json"))
    record = watched(name, pytest.fail, "watched without Triton")
    assert record == KernelRecord.load(RECORDS / f"{name}.json")
    assert capsys.readouterr().out == "Triton does not run on this system: recorded on Linux.\n"


def test_a_name_without_a_record(no_triton):
    with pytest.raises(ValueError, match=r"There is no record '02\.readz'; there is 02\.reads"):
        watched("02.readz", observe)
