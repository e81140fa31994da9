"""The name of a machine is short, has no marketing marks, and says how many cores may be used."""

import os

import pytest
import torch

from servelab.device import machine


@pytest.mark.parametrize(
    ("raw", "short"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel Xeon"),
        ("AMD EPYC 7B13 64-Core Processor", "AMD EPYC 7B13"),
        ("AMD EPYC", "AMD EPYC"),
        ("12th Gen Intel(R) Core(TM) i7-1260P", "12th Gen Intel Core i7-1260P"),
        ("Apple M2 Pro", "Apple M2 Pro"),
    ],
)
def test_names_are_short(monkeypatch, raw, short):
    monkeypatch.setattr(machine, "_processor", lambda: raw)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    assert machine.processor_name() == f"{short}, 2 cores"


def test_one_core_is_singular(monkeypatch):
    monkeypatch.setattr(machine, "_processor", lambda: "AMD EPYC")
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    assert machine.processor_name() == "AMD EPYC, 1 core"


def test_cores_are_those_of_this_process():
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)


def test_a_gpu_goes_first(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert machine.machine_name.__wrapped__() == "NVIDIA H100 80GB HBM3"


def test_a_failing_driver_leaves_the_processor(monkeypatch):
    def fail():
        raise RuntimeError("driver too old")

    monkeypatch.setattr(torch.cuda, "is_available", fail)
    assert machine.machine_name.__wrapped__() == machine.processor_name()
