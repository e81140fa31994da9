"""`make gpu DRY=1`: the whole script in Triton's interpreter, and what it does when a kernel is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.kernel import cell, check, speed
from servelab import kernels

ROOT = Path(__file__).parents[2]


def dry_run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", "--dry", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_dry_run_checks_times_and_runs_everything(tmp_path):
    done = dry_run("--output", str(tmp_path / "kernels.json"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = done.stdout
    assert "WRONG" not in said
    assert "FAILED" not in said
    assert "left out" not in said
    assert " checks, 0 wrong" in said
    from benchmarks.report import Report

    report = Report.load(tmp_path / "kernels.json")
    assert list(report.sections) == ["checks", "speed", "engine", "cells"]
    assert report.machine["device"] == "Triton's interpreter"
    assert len(report.sections["checks"].measurements) == len(list(check.checks()))
    assert all(target.is_met for target in report.sections["engine"].targets)


def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "SERVELAB_TRITON": "always"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "expected a GPU that torch can use, got none" in done.stdout


@pytest.fixture
def bench():
    return check.Bench(torch.device("cpu"), small=True, dtype=torch.float16)


def test_every_operator_is_checked():
    checked = {operator for operator, _, _ in check.checks()}
    public = {name for name in kernels.__all__ if f"{name}_reference" in kernels.__all__} - {"dequantize_kv"}
    assert checked == public  # dequantize_kv is checked with quantize_kv


def test_every_timed_operator_is_one_that_is_checked():
    checked = {operator for operator, _, _ in check.checks()}
    assert {operator for operator, _, _ in speed.sections()} <= checked


def test_a_wrong_kernel_is_found_and_the_others_are_still_checked(bench, monkeypatch):
    """Without a GPU the references answer, and are right; one that is off by a little, or raises, is not."""
    assert all(outcome.is_right for outcome in check.check_all(bench, lambda text: None))
    monkeypatch.setattr(kernels, "rms_norm", lambda x, weight, eps: kernels.rms_norm_reference(x, weight, eps) * 1.01)
    monkeypatch.setattr(kernels, "copy_blocks", lambda cache, pairs: 1 // 0)
    wrong = [outcome for outcome in check.check_all(bench, lambda text: None) if not outcome.is_right]
    assert [outcome.operator for outcome in wrong] == ["copy_blocks", "rms_norm"]
    assert wrong[0].message == "ZeroDivisionError: integer division or modulo by zero"


def test_an_error_is_a_share_of_what_is_allowed():
    exact = torch.tensor([1.0, 2.0])
    plain = torch.tensor([1.0, 2.002]).half()
    assert check.share(torch.tensor([1.0, 2.002]).half(), plain, exact) == pytest.approx(0.5, rel=0.01)
    assert check.share(torch.tensor([1.0, 2.2]).half(), plain, exact) > 1
    assert check.share(torch.tensor([1.0, float("nan")]).half(), plain, exact) == float("inf")


def test_gpu_cells_are_those_with_the_tag():
    source = '# %% [markdown] id="a"\n# text\n# %% id="b" tags=["gpu"]\nprint(1)\n\n# %% id="c"\nprint(2)\n'
    assert cell.gpu_cells(source) == ["print(1)"]
