"""Memory against time, read from `/metrics` while something else happens."""

import time
from itertools import count

import pytest

from servelab.serving.target import Target, TargetFailed
from servelab.serving.watch import Watcher

FORM = "vllm:kv_cache_usage_perc {}\nvllm:num_requests_running {}\nvllm:num_requests_waiting {}\n"


class Replica(Target):
    """A server that tells what it is told to, in order."""

    def __init__(self, *texts):
        super().__init__("http://replica")
        object.__setattr__(self, "texts", texts)
        object.__setattr__(self, "numbers", count())

    def metrics_text(self):
        text = self.texts[min(next(self.numbers), len(self.texts) - 1)]
        if isinstance(text, Exception):
            raise text
        return text


def watch(*replicas, until=3):
    with Watcher(replicas, interval_s=0.01) as watcher:
        deadline = time.monotonic() + 5
        while len(watcher.samples) < until and time.monotonic() < deadline and not (until == 0 and watcher.fault):
            time.sleep(0.005)
    return watcher


def test_samples_come_at_their_times():
    watcher = watch(Replica(FORM.format(0.1, 2, 0), FORM.format(0.5, 4, 3)))
    first, second, *_ = watcher.samples
    assert (first.kv_usage, first.running, first.waiting) == (0.1, 2, 0)
    assert (second.kv_usage, second.running, second.waiting) == (0.5, 4, 3)
    assert 0 <= first.t_s < second.t_s < 5


def test_replicas_add_up_and_their_usage_is_the_mean():
    sample = watch(Replica(FORM.format(0.2, 2, 1)), Replica(FORM.format(0.6, 3, 0)), until=1).samples[0]
    assert (sample.kv_usage, sample.running, sample.waiting) == (pytest.approx(0.4), 5, 1)


def test_a_reading_that_fails_is_left_out():
    watcher = watch(Replica(TargetFailed("gone"), "vllm:num_requests_running 1\n", FORM.format(0.1, 1, 0)), until=2)
    assert {sample.running for sample in watcher.samples} == {1}
    assert watcher.fault == "expected vllm:kv_cache_usage_perc in http://replica/metrics, got 1 other names"


def test_a_server_without_metrics_leaves_a_reason():
    watcher = watch(Replica(TargetFailed("http://replica/metrics answers 404: Not Found")), until=0)
    assert watcher.samples == []
    assert watcher.fault == "http://replica/metrics answers 404: Not Found"


def test_an_interval_is_above_zero():
    with pytest.raises(ValueError, match="expected interval_s above 0, got 0"):
        Watcher([], 0)
