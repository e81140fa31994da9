"""Measured ceilings are plausible, kept for the process, and agree with a second way to time the same work."""

import time

import torch

from servelab.device import ceiling, measured_bandwidth, measured_matmul_flops


def test_bandwidth_is_kept_and_plausible():
    first = measured_bandwidth("cpu")
    assert measured_bandwidth("cpu") == first
    assert 1e8 < first < 1e13


def test_matmul_agrees_with_a_product_timed_here():
    measured = measured_matmul_flops(torch.float32, "cpu")
    rows = 512
    left = torch.rand(rows, rows)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        left @ left
        best = min(best, time.perf_counter() - start)
    assert 0.1 < measured / (2 * rows**3 / best) < 10


def test_matrices_grow_until_a_product_takes_long_enough(monkeypatch):
    tried = []

    def seconds(work, device):
        tried.append(work.args[0].shape[0])
        return 1e-3 * (tried[-1] / 256) ** 3

    monkeypatch.setattr(ceiling, "_best_seconds", seconds)
    assert ceiling._matmul_flops.__wrapped__(torch.float32, "cpu") == 2 * 256**3 / 1e-3
    assert tried == [256, 512, 1024]


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


def test_again_measures_now_and_leaves_what_is_kept(monkeypatch):
    kept = measured_bandwidth("cpu"), measured_matmul_flops(torch.float32, "cpu")
    monkeypatch.setattr(ceiling, "_best_seconds", lambda work, device: 0.5)
    assert measured_bandwidth("cpu", again=True) == 2 * ceiling.CPU_READ_BYTES
    assert measured_matmul_flops(torch.float32, "cpu", again=True) == 2 * 256**3 / 0.5
    assert (measured_bandwidth("cpu"), measured_matmul_flops(torch.float32, "cpu")) == kept
