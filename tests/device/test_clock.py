"""The clock of a GPU; without one it only says that the work runs."""

import torch

from servelab.device import Clock


def test_on_a_cpu_the_work_runs_once():
    runs = []
    clock = Clock("cpu")
    assert len(clock.samples(lambda: runs.append(1))) == 1
    assert clock.median_ms(lambda: runs.append(1)) >= 0
    assert runs == [1, 1]


def test_on_a_gpu_it_is_the_median_of_warm_runs_from_a_cold_cache(monkeypatch):
    """A GPU that is not there: events that read a clock which the work and the flush move."""
    now, flushes = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at  # ms

    class Buffer:
        def zero_(self):
            flushes.append(now[0])
            now[0] += 1000.0

    def work(costs=iter([500.0] * 3 + [30.0, 20.0, 40.0] * 50)):  # noqa: B008 (one iterator for all calls)
        now[0] += next(costs)

    monkeypatch.setattr(torch, "empty", lambda *shape, **options: Buffer())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = Clock("cuda", budget_s=0.27)
    samples = clock.samples(work)
    assert samples == tuple(ms / 1e3 for ms in [30.0, 20.0, 40.0] * 3)  # 9 of 30 ms each in 0.27 s, none warming up
    assert len(flushes) == 3 + 9
