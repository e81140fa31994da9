"""Measured ceilings are plausible, kept for the process, and agree with a second way to time the same work."""

import time

import pytest
import torch

from servelab.device import ceiling, measured_bandwidth, measured_matmul_flops


def test_bandwidth_is_kept_and_plausible():
    first = measured_bandwidth("cpu")
    assert measured_bandwidth("cpu") == first
    assert 1e8 < first < 1e13


def test_matmul_agrees_with_a_product_timed_here():
    measured = measured_matmul_flops(torch.float32, "cpu")
    rows = ceiling.CPU_MATRIX_ROWS
    left = torch.rand(rows, rows)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        left @ left
        best = min(best, time.perf_counter() - start)
    assert measured / (2 * rows**3 / best) == pytest.approx(1, rel=0.9)


def test_measuring_stops_when_its_time_is_spent():
    calls = []

    def work():
        calls.append(time.perf_counter())
        time.sleep(0.02)

    ceiling._best_seconds(work, "cpu", passes=1000, budget_s=0.1)
    assert 2 <= len(calls) < 20


def test_the_shortest_pass_counts(monkeypatch):
    ticks = iter([0.0, 1.0, 4.0, 5.0, 5.5, 6.0, 8.0])
    monkeypatch.setattr(ceiling.time, "perf_counter", lambda: next(ticks))
    assert ceiling._best_seconds(lambda: None, "cpu", passes=3, budget_s=100) == 0.5
